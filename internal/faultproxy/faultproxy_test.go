package faultproxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outbox-relay/outbox-relay/internal/faultproxy"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hang is how long something is waited for that must come.
const hang = 30 * time.Second

// quiet is how long nothing must come.
const quiet = 50 * time.Millisecond

// echo is a server that sends back every line, and what it has received.
type echo struct {
	addr string

	mu    sync.Mutex
	lines []string
	ended int
}

func (e *echo) received() (lines []string, ended int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lines, e.ended
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{addr: listener.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { e.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
	})
	return e
}

func (e *echo) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		e.mu.Lock()
		e.lines = append(e.lines, lines.Text())
		e.mu.Unlock()
		if _, err := conn.Write([]byte(lines.Text() + "\n")); err != nil {
			break
		}
	}
	e.mu.Lock()
	e.ended++
	e.mu.Unlock()
}

// newProxy is closed before the server behind it.
func newProxy(t *testing.T) (*faultproxy.Proxy, *echo) {
	t.Helper()
	server := startEcho(t)
	p, err := faultproxy.New(server.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, server
}

type client struct {
	net.Conn
	reader *bufio.Reader
}

func dial(t *testing.T, p *faultproxy.Proxy) *client {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{conn, bufio.NewReader(conn)}
}

func (c *client) send(t *testing.T, line string) {
	t.Helper()
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		t.Fatal(err)
	}
}

func (c *client) wants(t *testing.T, line string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(hang))
	got, err := c.reader.ReadString('\n')
	if err != nil || got != line+"\n" {
		t.Fatalf("got %q, %v; want %q", got, err, line)
	}
}

func (c *client) wantsNothing(t *testing.T) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(quiet))
	if b, err := c.reader.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got byte %q, %v; want neither bytes nor an end", b, err)
	}
}

func (c *client) wantsEnd(t *testing.T) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(hang))
	if _, err := c.reader.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read gave %v; want the end of the connection", err)
	}
}

func TestBytesPassAndEndsAreToldToTheOtherSide(t *testing.T) {
	t.Parallel()
	p, server := newProxy(t)
	c := dial(t, p)
	c.send(t, "a")
	c.wants(t, "a")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.wantsEnd(t)
	if _, ended := server.received(); ended != 1 {
		t.Errorf("the server saw %d connections end, want 1", ended)
	}
	testenv.Eventually(t, "no connection is left", func() bool { return p.Open() == 0 })
}

func TestHeldBytesArriveWhenTheNetworkIsMended(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faultproxy.Fault{
		"both directions": faultproxy.Silent,
		"to the server":   {ToServer: faultproxy.Flow{Hold: true}},
		"to the client":   {ToClient: faultproxy.Flow{Hold: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, server := newProxy(t)
			c := dial(t, p)
			c.send(t, "before")
			c.wants(t, "before")
			p.Set(fault)
			c.send(t, "a")
			c.send(t, "b")
			if !fault.ToServer.Hold {
				testenv.Eventually(t, "the server has got both", func() bool { lines, _ := server.received(); return len(lines) == 3 })
			}
			c.wantsNothing(t)
			if lines, _ := server.received(); fault.ToServer.Hold && len(lines) != 1 {
				t.Errorf("the server got %q", lines)
			}
			p.Set(faultproxy.Fault{})
			c.wants(t, "a")
			c.wants(t, "b")
		})
	}
}

func TestSwallowedBytesNeverArrive(t *testing.T) {
	t.Parallel()
	p, server := newProxy(t)
	c := dial(t, p)
	p.Set(faultproxy.Fault{ToServer: faultproxy.Flow{Swallow: true}})
	c.send(t, "a")
	c.wantsNothing(t)
	p.Set(faultproxy.Fault{ToClient: faultproxy.Flow{Swallow: true}})
	c.send(t, "b")
	testenv.Eventually(t, "the server has got the second", func() bool { lines, _ := server.received(); return len(lines) == 1 })
	c.wantsNothing(t)
	p.Set(faultproxy.Fault{})
	c.send(t, "c")
	c.wants(t, "c")
	if lines, _ := server.received(); len(lines) != 2 || lines[0] != "b" {
		t.Errorf("the server got %q, want b and c", lines)
	}
}

func TestDelayKeepsOrderAndRate(t *testing.T) {
	t.Parallel()
	p, _ := newProxy(t)
	c := dial(t, p)
	const delay, lines = 100 * time.Millisecond, 50
	p.Set(faultproxy.Delayed(delay))
	began := time.Now()
	for i := range lines {
		c.send(t, string(rune('A'+i)))
	}
	for i := range lines {
		c.wants(t, string(rune('A'+i)))
	}
	// One delay after another would take lines times as long.
	if took := time.Since(began); took < 2*delay || took > lines*delay {
		t.Errorf("%d lines took %s there and back, with a delay of %s each way", lines, took, delay)
	}
}

func TestNeitherSideSeesTheOtherEndWhileSilent(t *testing.T) {
	t.Parallel()
	p, server := newProxy(t)
	c := dial(t, p)
	c.send(t, "a")
	c.wants(t, "a")
	p.Set(faultproxy.Silent)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	other := dial(t, p)
	other.send(t, "b")
	other.wantsNothing(t)
	if _, ended := server.received(); ended != 0 {
		t.Error("the server saw the client's end through a network that was cut")
	}
	p.Set(faultproxy.Fault{})
	other.wants(t, "b")
	testenv.Eventually(t, "the server has seen the end", func() bool { _, ended := server.received(); return ended == 1 })
}

func TestNewConnectionsMayWorkWhileOpenOnesDoNot(t *testing.T) {
	t.Parallel()
	p, _ := newProxy(t)
	open := dial(t, p)
	open.send(t, "a")
	open.wants(t, "a")
	p.SetOpen(faultproxy.Silent)
	open.send(t, "b")
	open.wantsNothing(t)
	fresh := dial(t, p)
	fresh.send(t, "c")
	fresh.wants(t, "c")
	if p.Accepted() != 2 {
		t.Errorf("%d connections were made, want 2", p.Accepted())
	}
}

func TestDropEndsBothSidesAndTakesNewConnections(t *testing.T) {
	t.Parallel()
	p, server := newProxy(t)
	c := dial(t, p)
	c.send(t, "a")
	c.wants(t, "a")
	p.Set(faultproxy.Silent) // a cut must not keep Drop from ending anything
	p.Drop()
	c.wantsEnd(t)
	testenv.Eventually(t, "the server has seen the end", func() bool { _, ended := server.received(); return ended == 1 })
	p.Set(faultproxy.Fault{})
	c = dial(t, p)
	c.send(t, "b")
	c.wants(t, "b")
}

func TestRefusedConnectionsAreTakenAgainAtTheSameAddress(t *testing.T) {
	t.Parallel()
	p, _ := newProxy(t)
	c := dial(t, p)
	p.Refuse()
	c.wantsEnd(t)
	if conn, err := net.Dial("tcp", p.Addr()); err == nil {
		_ = conn.Close()
		t.Fatal("a connection was made")
	}
	if err := p.Accept(); err != nil {
		t.Fatal(err)
	}
	c = dial(t, p)
	c.send(t, "a")
	c.wants(t, "a")
}

func TestNewConnectionsCanLeadToAnotherServer(t *testing.T) {
	t.Parallel()
	p, first := newProxy(t)
	second := startEcho(t)
	before := dial(t, p)
	before.send(t, "a")
	before.wants(t, "a")
	p.Lead(second.addr)
	after := dial(t, p)
	after.send(t, "b")
	after.wants(t, "b")
	before.send(t, "c")
	before.wants(t, "c")
	got, _ := first.received()
	other, _ := second.received()
	if len(got) != 2 || len(other) != 1 {
		t.Errorf("the first server got %q, the second %q", got, other)
	}
}

func TestALongStreamArrivesWhole(t *testing.T) {
	t.Parallel()
	p, _ := newProxy(t)
	c := dial(t, p)
	const size = 8 << 20
	sent := make(chan error, 1)
	go func() {
		line := make([]byte, 1024)
		for i := range line {
			line[i] = 'x'
		}
		line[len(line)-1] = '\n'
		for range size / len(line) {
			if _, err := c.Write(line); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	_ = c.SetReadDeadline(time.Now().Add(hang))
	n, err := io.CopyN(io.Discard, c.reader, size)
	if n != size || err != nil {
		t.Errorf("%d of %d bytes came back: %v", n, size, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
