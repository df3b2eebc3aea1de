package realkafka

import (
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/java"
	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

//go:embed server.properties
var serverProperties []byte

// securedProperties wants the file of key and certificate, the login that PLAIN
// accepts, and the milliseconds after which a quiet connection is closed.
const securedProperties = `
listener.name.secured.ssl.keystore.type=PEM
listener.name.secured.ssl.keystore.location=%s
listener.name.secured.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.secured.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required %s;
listener.name.secured.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secured.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
connections.max.idle.ms=%d
`

// orderlyTimeout bounds an orderly stop, after which the broker is killed.
const orderlyTimeout = 30 * time.Second

// service runs in the child: the broker and the folder with its data.
type service struct {
	dir string

	mu      sync.Mutex
	command Command
	broker  *exec.Cmd
	exited  chan struct{} // closed once the broker is gone; nil before the first
}

// Start prepares the data folder and starts the broker.
func (s *service) Start(c Command, reply *State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.command = c
	if err := s.writeFiles(); err != nil {
		return err
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	id[0] &= 0x7f        // or the text could start with a dash and be taken for an option
	format := s.java("kafka.tools.StorageTool", "format",
		"--cluster-id", base64.RawURLEncoding.EncodeToString(id), "--config", s.path("server.properties"))
	if out, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("format data folder: %w\n%s", err, out)
	}
	return s.launch(reply)
}

// Restart starts the broker again, after an orderly stop if it still runs.
func (s *service) Restart(_ struct{}, reply *State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.end(syscall.SIGTERM); err != nil {
		return err
	}
	return s.launch(reply)
}

// Kill ends the broker at once.
func (s *service) Kill(_ struct{}, _ *State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(syscall.SIGKILL)
}

// Check fails when the broker is not running.
func (s *service) Check(_ struct{}, _ *State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.exited:
		return fmt.Errorf("broker ended: %s", s.broker.ProcessState)
	default:
		return nil
	}
}

// Close runs once, when the parent is gone or asks for the end. The data is
// thrown away next, so the broker need not save it.
func (s *service) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(syscall.SIGKILL)
}

func (s *service) path(name string) string { return filepath.Join(s.dir, name) }

func (s *service) writeFiles() error {
	controller, err := keeper.FreePort()
	if err != nil {
		return err
	}
	clients := fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", s.command.Port)
	var secured string
	if s.command.SecuredPort != 0 {
		clients += fmt.Sprintf(",SECURED://127.0.0.1:%d", s.command.SecuredPort)
		secured = fmt.Sprintf(securedProperties, s.path("keystore.pem"), s.command.Login, s.command.MaxIdle.Milliseconds())
		if err := os.WriteFile(s.path("keystore.pem"), s.command.Keystore, 0o600); err != nil {
			return fmt.Errorf("write key of TLS listener: %w", err)
		}
	}
	properties := fmt.Appendf(serverProperties,
		"listeners=%[1]s,CONTROLLER://127.0.0.1:%[2]d\nadvertised.listeners=%[1]s\ncontroller.quorum.voters=1@127.0.0.1:%[2]d\nlog.dirs=%[3]s\n%[4]s",
		clients, controller, s.path("data"), secured)
	if err := os.WriteFile(s.path("server.properties"), properties, 0o644); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := os.WriteFile(s.path("log4j2.properties"), java.LogProperties, 0o644); err != nil {
		return fmt.Errorf("write settings of log: %w", err)
	}
	return nil
}

// java returns the command that runs a class of Kafka.
func (s *service) java(class string, args ...string) *exec.Cmd {
	cmd := exec.Command(s.command.Java, append([]string{
		"-Xmx512m",
		"-Dlog4j2.configurationFile=" + s.path("log4j2.properties"),
		// No performance counters in /tmp.
		"-XX:-UsePerfData", "-Djava.io.tmpdir=" + s.dir,
		"-cp", filepath.Join(s.command.Jars, "*"),
		class,
	}, args...)...)
	cmd.Dir = s.dir
	return cmd
}

func (s *service) launch(reply *State) error {
	cmd := s.java("kafka.Kafka", s.path("server.properties"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run broker: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended stands in ProcessState
		close(exited)
	}()
	s.broker, s.exited = cmd, exited
	*reply = State{PID: cmd.Process.Pid}
	return nil
}

func (s *service) end(signal syscall.Signal) error {
	if s.exited == nil {
		return nil
	}
	if err := s.broker.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end broker: %w", err)
	}
	select {
	case <-s.exited:
	case <-time.After(orderlyTimeout):
		_ = s.broker.Process.Kill()
		<-s.exited
	}
	return nil
}
