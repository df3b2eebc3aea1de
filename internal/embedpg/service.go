package embedpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

const superuser = "postgres"

// service runs in the child: the server and the folder with its data.
type service struct {
	dir string

	mu     sync.Mutex
	config embeddedpostgres.Config
	state  State
}

// Start is called once by the parent.
func (s *service) Start(o Options, reply *State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A strict umask of root's would close the cache to the server's account.
	syscall.Umask(0o022)
	cache, err := openCache(o.CacheDir)
	if err != nil {
		return err
	}
	if err := dropRoot(cache, s.dir); err != nil {
		return err
	}
	if err := s.stayInFolder(); err != nil {
		return fmt.Errorf("use temporary folder: %w; set TMPDIR to a folder that every user can reach", err)
	}

	// A cold cache is filled by one process alone: the library looks for a
	// single file of the binaries, and would run a half extracted server.
	complete := filepath.Join(cache, "complete")
	unlock, err := keeper.Lock(context.Background(), filepath.Join(cache, "lock"))
	if err != nil {
		return fmt.Errorf("cache of Postgres binaries: %w", err)
	}
	defer unlock()
	_, err = os.Stat(complete)
	cold := err != nil
	if cold {
		if err := removePartial(cache); err != nil {
			return err
		}
	} else {
		unlock()
	}

	s.state.Password = rand.Text()
	if err := s.startOnFreePort(o, cache); err != nil {
		if cold {
			return fmt.Errorf("%w (if its binaries could not be downloaded, use a server of your own)", err)
		}
		return err
	}
	if cold {
		if err := os.WriteFile(complete, nil, 0o644); err != nil {
			return fmt.Errorf("mark cache of Postgres binaries as complete: %w", err)
		}
	}
	*reply = s.state
	return nil
}

// startOnFreePort tries again when somebody took the port between the look for
// a free one and the server's start.
func (s *service) startOnFreePort(o Options, cache string) error {
	const tries = 3
	for try := 1; ; try++ {
		s.state.Port = o.Port
		if o.Port == 0 {
			port, err := keeper.FreePort()
			if err != nil {
				return err
			}
			s.state.Port = port
		}
		s.config = s.configFor(o, cache)
		err := s.up()
		if err == nil || o.Port != 0 || try == tries || keeper.PortFree(s.state.Port) {
			return err
		}
	}
}

func (s *service) configFor(o Options, cache string) embeddedpostgres.Config {
	parameters := map[string]string{
		"listen_addresses": "127.0.0.1",
		// No socket file in /tmp.
		"unix_socket_directories": "",
		"max_connections":         "400",
	}
	maps.Copy(parameters, o.Parameters)
	return embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.V18).
		Port(uint32(s.state.Port)).
		Username(superuser).
		// Random, since a superuser can run programs and the port is open to
		// every user of the machine.
		Password(s.state.Password).
		Database("postgres").
		// The caller's locale need not exist for these binaries.
		Locale("C").
		Encoding("UTF8").
		CachePath(cache).
		BinariesPath(filepath.Join(cache, binaries)).
		// Emptied by the library at every start, so it must not hold the data.
		RuntimePath(filepath.Join(s.dir, "run")).
		DataPath(filepath.Join(s.dir, "data")).
		StartParameters(parameters).
		StartTimeout(time.Minute).
		Logger(os.Stderr)
}

// Restart is called by the parent, for a server that runs or died.
func (s *service) Restart(_ struct{}, reply *State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.down(); err != nil {
		return err
	}
	// Sessions of a server that was killed need a moment to notice; until the
	// last has let go of the shared memory, a new server refuses to start.
	const tries = 5
	for try := 1; ; try++ {
		err := s.up()
		if err == nil {
			break
		}
		if try == tries {
			return err
		}
		time.Sleep(time.Second)
	}
	*reply = s.state
	return nil
}

// Close runs once, when the parent is gone or asks for the end.
func (s *service) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down()
}

func (s *service) up() error {
	// A fresh value each time: it takes over the data that it finds, where one
	// that was started before would refuse to start again.
	if err := embeddedpostgres.NewDatabase(s.config).Start(); err != nil {
		// The library may have failed after the server was up, and a next try
		// would take another port.
		return errors.Join(err, s.down())
	}
	pid, err := s.readPID()
	if err != nil {
		return err
	}
	s.state.PID = pid
	return nil
}

// stayInFolder sends temporary files, such as the library's log, into the
// folder that is removed at the end, and leaves the parent's working folder,
// which may be closed to the account of the server.
func (s *service) stayInFolder() error {
	if err := os.Setenv("TMPDIR", s.dir); err != nil {
		return err
	}
	return os.Chdir(s.dir)
}
