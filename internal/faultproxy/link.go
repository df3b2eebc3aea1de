package faultproxy

import (
	"net"
	"sync"
	"time"
)

const (
	chunkSize = 32 << 10
	// queued chunks bound what is under way in one direction.
	queued = 64
)

// link is one client's connection and the one to the server that serves it.
type link struct {
	toServer, toClient *pipe
	once               sync.Once
	closed             chan struct{}
}

func newLink(client, server *net.TCPConn) *link {
	l := &link{closed: make(chan struct{})}
	l.toServer = newPipe(client, server, l)
	l.toClient = newPipe(server, client, l)
	return l
}

// run forwards until the link is closed, or both sides have ended and been told
// so.
func (l *link) run() {
	var wg sync.WaitGroup
	for _, p := range []*pipe{l.toServer, l.toClient} {
		wg.Go(p.read)
		wg.Go(p.write)
	}
	wg.Wait()
	l.close()
}

func (l *link) set(f Fault) {
	l.toServer.set(f.ToServer)
	l.toClient.set(f.ToClient)
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.closed)
		_ = l.toServer.from.Close()
		_ = l.toServer.to.Close()
	})
}

// pipe forwards one direction. What was read waits in a queue, so that a delay
// delays and does not slow down.
type pipe struct {
	from, to *net.TCPConn
	link     *link
	queue    chan chunk // closed at the end of what from sends

	mu      sync.Mutex
	flow    Flow
	changed chan struct{} // closed and replaced with every change of flow
}

type chunk struct {
	bytes []byte
	read  time.Time
}

func newPipe(from, to *net.TCPConn, l *link) *pipe {
	return &pipe{from: from, to: to, link: l, queue: make(chan chunk, queued), changed: make(chan struct{})}
}

func (p *pipe) set(f Flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flow = f
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pipe) state() (Flow, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flow, p.changed
}

func (p *pipe) read() {
	defer close(p.queue)
	for {
		buffer := make([]byte, chunkSize)
		n, err := p.from.Read(buffer)
		if n > 0 {
			select {
			case p.queue <- chunk{buffer[:n], time.Now()}:
			case <-p.link.closed:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *pipe) write() {
	for c := range p.queue {
		swallow, ok := p.await(c.read)
		if !ok {
			return
		}
		if swallow {
			continue
		}
		if _, err := p.to.Write(c.bytes); err != nil {
			p.link.close()
			return
		}
	}
	p.end()
}

// end passes on that the sender has closed, once the fault allows it.
func (p *pipe) end() {
	for {
		f, changed := p.state()
		if !f.Hold && !f.Swallow {
			break
		}
		select {
		case <-changed:
		case <-p.link.closed:
			return
		}
	}
	// The other direction goes on: a client that has closed its side may still
	// be reading.
	if p.to.CloseWrite() != nil {
		p.link.close()
	}
}

// await returns when a chunk that was read at a time may go on, and whether it
// is to be swallowed instead; not ok says that the link was closed.
func (p *pipe) await(read time.Time) (swallow, ok bool) {
	for {
		f, changed := p.state()
		var due <-chan time.Time
		switch {
		case f.Swallow:
			return true, true
		case f.Hold:
		default:
			left := time.Until(read.Add(f.Delay))
			if left <= 0 {
				return false, true
			}
			timer := time.NewTimer(left)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-due:
		case <-changed:
		case <-p.link.closed:
			return false, false
		}
	}
}
