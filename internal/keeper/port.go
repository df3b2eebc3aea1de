package keeper

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The range lies below the ports that Linux and macOS give to outgoing
// connections. From inside of it, the port of a server that restarts can be
// taken by any client meanwhile; a client that redials the stopped server can
// even be given that very port as its own, and connects to itself.
const (
	firstPort = 15000
	lastPort  = 30000
)

// FreePort returns a TCP port of 127.0.0.1 that nobody listens on.
func FreePort() (int, error) {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if PortFree(port) {
			return port, nil
		}
	}
	return 0, errors.New("find a free port on 127.0.0.1: 100 tries between 15000 and 30000 were all taken")
}

// PortFree reports whether nobody listens on the port of 127.0.0.1.
func PortFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
