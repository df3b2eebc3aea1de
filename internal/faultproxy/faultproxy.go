// Package faultproxy is a TCP proxy that does to connections what networks do:
// it delays bytes, keeps them back, swallows them, cuts connections and refuses
// new ones. It knows nothing of what is spoken through it. Faults are switched
// while connections are open, and each direction has its own.
package faultproxy

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

// Fault is what happens to the bytes of a connection. The zero value passes
// them on.
type Fault struct {
	ToServer, ToClient Flow
}

// Flow is what happens to the bytes of one direction. While it is held or
// swallowed the end of the connection is not passed on either: neither side
// sees a FIN or a RST of the other.
type Flow struct {
	// Delay is how much later each byte arrives. The rate is not reduced.
	Delay time.Duration
	// Hold keeps bytes back and delivers them when the fault ends, as TCP does
	// over a network that is cut and mended. Once some megabytes are held, the
	// sender blocks.
	Hold bool
	// Swallow takes bytes and discards them. They never arrive; the connection
	// is of little use after the fault.
	Swallow bool
}

// Silent is a network that is cut: connections stay established, and nothing
// arrives on either side until it is mended.
var Silent = Fault{ToServer: Flow{Hold: true}, ToClient: Flow{Hold: true}}

// Delayed is a network that is slow in both directions.
func Delayed(d time.Duration) Fault {
	return Fault{ToServer: Flow{Delay: d}, ToClient: Flow{Delay: d}}
}

// dialTimeout bounds the connection to the server.
const dialTimeout = 10 * time.Second

// Proxy stands before one server. Its methods may be called from any goroutine.
type Proxy struct {
	addr string
	wg   sync.WaitGroup

	mu       sync.Mutex
	server   string
	listener *net.TCPListener // nil while new connections are refused
	fault    Fault            // of new connections
	links    map[*link]struct{}
	accepted int
	closed   bool
}

// New starts a proxy before the server at a host:port. The caller must Close
// it. It fails when it cannot listen on 127.0.0.1.
func New(server string) (*Proxy, error) {
	// A port that the proxy can have again after it has refused connections for
	// a while: one that no outgoing connection is given.
	port, err := keeper.FreePort()
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		server: server,
		addr:   net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		links:  map[*link]struct{}{},
	}
	return p, p.Accept()
}

// Addr is the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.addr }

// Set puts all connections under the fault: those that are open and those to
// come. Set(Fault{}) mends everything but closed connections.
func (p *Proxy) Set(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	for l := range p.links {
		l.set(f)
	}
}

// SetOpen puts the connections that are open now under the fault. New ones
// follow the last Set.
func (p *Proxy) SetOpen(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.set(f)
	}
}

// Drop closes all open connections on both sides. New ones are taken as before.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Refuse closes all open connections, and refuses new ones until Accept.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse()
}

func (p *Proxy) refuse() {
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		l.close()
	}
}

// Accept takes connections again after Refuse, at the same address. It fails
// when another process has taken the port meanwhile.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("listen as a proxy before %s: %w", p.server, err)
	}
	p.listener = listener.(*net.TCPListener)
	serving := p.listener
	p.wg.Go(func() { p.serve(serving) })
	return nil
}

// Lead sends new connections to the server at another host:port, as a name does
// whose address has changed. Open ones stay where they are.
func (p *Proxy) Lead(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
}

// Open is the number of connections that are open on both sides.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Accepted is the number of connections that clients have made so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Close ends the proxy with all its connections and waits for its goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.refuse()
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) serve(listener *net.TCPListener) {
	for {
		client, err := listener.AcceptTCP()
		if err != nil {
			return // closed by Refuse or Close
		}
		p.mu.Lock()
		p.accepted++
		p.mu.Unlock()
		p.wg.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client *net.TCPConn) {
	p.mu.Lock()
	address := p.server
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", address, dialTimeout)
	if err != nil {
		_ = client.Close() // as near as a proxy gets to a refusal
		return
	}
	l := newLink(client, server.(*net.TCPConn))
	p.mu.Lock()
	if p.listener == nil {
		p.mu.Unlock()
		l.close()
		return
	}
	l.set(p.fault)
	p.links[l] = struct{}{}
	p.mu.Unlock()

	l.run()

	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}
