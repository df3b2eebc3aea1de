package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"
)

// shutdownGrace is how long requests under way may take when the server ends.
const shutdownGrace = 2 * time.Second

// httpServer serves probes and metrics on a port that it already holds.
type httpServer struct {
	listener net.Listener
}

// listenHTTP takes the port. It is done before anything else, so that a second
// relay with the same settings ends before it has touched a row. For off it
// returns nil.
func listenHTTP(addr string) (*httpServer, error) {
	if addr == httpOff {
		return nil, nil
	}
	listener, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen for HTTP on %s: the port is in use, perhaps by another relay; set RELAY_HTTP_ADDR (for the demo, --http) to another host:port, or to off: %w", addr, err)
	case err != nil:
		return nil, fmt.Errorf("listen for HTTP on %s: set RELAY_HTTP_ADDR (for the demo, --http) to an address of this machine, or to off: %w", addr, err)
	}
	return &httpServer{listener}, nil
}

// Addr returns where the server listens, or off.
func (s *httpServer) Addr() string {
	if s == nil {
		return httpOff
	}
	return s.listener.Addr().String()
}

// Serve answers requests until ctx ends, then lets those under way finish, and
// returns nil. Any other end is an error: without its probes the process is not
// to be trusted.
func (s *httpServer) Serve(ctx context.Context, handler http.Handler) error {
	if s == nil {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{
		Handler: handler,
		// A client that dawdles must not hold connections for ever.
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	stopped := make(chan struct{})
	stopping := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // the requests had their time
		}
	})
	err := server.Serve(s.listener)
	if !stopping() {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve HTTP on %s: %w", s.Addr(), err)
}

// Close frees the port of a server that was never served.
func (s *httpServer) Close() {
	if s != nil {
		_ = s.listener.Close() // closing it again does no harm
	}
}
