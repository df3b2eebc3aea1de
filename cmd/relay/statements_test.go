package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// statementCounter stands between one relay and Postgres and counts the
// statements that pass: each is work for the server, whatever transaction it
// belongs to.
type statementCounter struct {
	addr string
	// cut is how many connections end at their first statement, which then does
	// not reach the server.
	cut atomic.Int32

	mu     sync.Mutex
	counts map[string]int // by their text
}

// countStatements returns a counter, and the environment of a relay whose
// connections all go through it.
func countStatements(t *testing.T, env variables) (*statementCounter, variables) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &statementCounter{addr: listener.Addr().String(), counts: map[string]int{}}
	var server string
	through := env.edited(t, func(u *url.URL) { server, u.Host = u.Host, c.addr })
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { c.serve(client, server) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return c, env.with("DATABASE_URL", through)
}

// serve ends with either side.
func (c *statementCounter) serve(client net.Conn, address string) {
	server, err := net.Dial("tcp", address)
	if err != nil {
		_ = client.Close()
		return
	}
	var answers sync.WaitGroup
	answers.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	_ = c.forward(server, client)
	_ = server.Close()
	answers.Wait()
}

var errCut = errors.New("cut by the test")

// forward passes on what the client sends. Its first message has no type.
func (c *statementCounter) forward(server io.Writer, client io.Reader) error {
	prepared, bound := map[string]string{}, ""
	for head := 4; ; head = 5 {
		header := make([]byte, head)
		if _, err := io.ReadFull(client, header); err != nil {
			return err
		}
		message := make([]byte, int(binary.BigEndian.Uint32(header[head-4:]))-4)
		if _, err := io.ReadFull(client, message); err != nil {
			return err
		}
		if head == 5 {
			if strings.ContainsRune("QP", rune(header[0])) && c.cut.Add(-1) >= 0 {
				return errCut
			}
			texts := strings.SplitN(string(message), "\x00", 3)
			switch header[0] {
			case 'Q':
				c.count(texts[0])
			case 'P': // parse: the name of the prepared statement, its text
				prepared[texts[0]] = texts[1]
			case 'B': // bind: the name of the portal, of the prepared statement
				bound = texts[1]
			case 'E':
				c.count(prepared[bound])
			}
		}
		if _, err := server.Write(slices.Concat(header, message)); err != nil {
			return err
		}
	}
}

func (c *statementCounter) count(statement string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[strings.Join(strings.Fields(statement), " ")]++
}

// reset forgets what was counted, and returns it.
func (c *statementCounter) reset() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	c.counts = map[string]int{}
	return counts
}

// perSecond returns the sum of counts, and a line for each statement.
func perSecond(counts map[string]int, seconds float64) (sum float64, lines string) {
	var b strings.Builder
	for _, statement := range slices.Sorted(maps.Keys(counts)) {
		rate := float64(counts[statement]) / seconds
		sum += rate
		fmt.Fprintf(&b, "\n%6.2f/s %.100s", rate, statement)
	}
	return sum, b.String()
}
