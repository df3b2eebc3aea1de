package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// config says what is measured. Each variable begins with PEERS.
type config struct {
	// Peers are the contenders by name, in the order in which they run.
	Peers []string `env:"PEERS"`
	// Seconds is the length of each measurement with a length.
	Seconds int `env:"PEERS_SECONDS" envDefault:"15"`
	// Rates are the events a second whose latency is measured.
	Rates []int `env:"PEERS_RATES" envDefault:"100,500,1000,5000"`
	// DrainRows is the size of the backlog.
	DrainRows int `env:"PEERS_DRAIN_ROWS" envDefault:"300000"`
	// Warmup is the number of events that each contender gets beforehand: a
	// JVM compiles what is used often.
	Warmup int `env:"PEERS_WARMUP" envDefault:"30000"`
	// Writers is the number of connections that write without pause.
	Writers int `env:"PEERS_WRITERS" envDefault:"64"`
	// PayloadBytes is the approximate size of a payload.
	PayloadBytes int `env:"PEERS_PAYLOAD_BYTES" envDefault:"128"`
	// JVM are the options of Debezium's Java. The default needs half of the
	// memory that the JVM's own collector does on 512 MB of heap, no more CPU
	// time, and pauses for less long.
	JVM []string `env:"PEERS_JVM" envDefault:"-Xms64m,-Xmx256m,-XX:+UseSerialGC"`
	// Out is the folder that the report and the plots are written to.
	Out string `env:"PEERS_OUT" envDefault:"docs/bench"`
}

// prefix is that of all variables; one that has it and is none is a typo.
const prefix = "PEERS_"

func readConfig() (config, error) {
	cfg, err := env.ParseAs[config]()
	if err != nil {
		return config{}, err
	}
	params, err := env.GetFieldParams(&cfg)
	if err != nil {
		return config{}, err
	}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		known := slices.ContainsFunc(params, func(p env.FieldParams) bool { return p.Key == name })
		if strings.HasPrefix(name, prefix) && !known {
			return config{}, fmt.Errorf("%s is no setting of this benchmark", name)
		}
	}
	if len(cfg.Peers) == 0 {
		for _, c := range contenders {
			cfg.Peers = append(cfg.Peers, c.name)
		}
	}
	return cfg, cfg.validate()
}

func (c config) validate() error {
	var errs []error
	for _, name := range c.Peers {
		if !slices.ContainsFunc(contenders, func(c contender) bool { return c.name == name }) {
			errs = append(errs, fmt.Errorf("PEERS has %q: allowed are %s", name, strings.Join(contenderNames(), ", ")))
		}
	}
	numbers := map[string]int{
		"PEERS_SECONDS": c.Seconds, "PEERS_DRAIN_ROWS": c.DrainRows, "PEERS_WARMUP": c.Warmup,
		"PEERS_WRITERS": c.Writers, "PEERS_PAYLOAD_BYTES": c.PayloadBytes,
	}
	if len(c.Rates) > 0 {
		numbers["PEERS_RATES"] = slices.Min(c.Rates)
	}
	for name, number := range numbers {
		if number < 1 {
			errs = append(errs, fmt.Errorf("%s: allowed are whole numbers above 0", name))
		}
	}
	return errors.Join(errs...)
}

func contenderNames() []string {
	names := make([]string, len(contenders))
	for i, c := range contenders {
		names[i] = c.name
	}
	return names
}

func (c config) length() time.Duration { return time.Duration(c.Seconds) * time.Second }

// command is the one that writes the same report again.
func (c config) command() string {
	var b strings.Builder
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if name == "PEERS" || strings.HasPrefix(name, prefix) && name != "PEERS_OUT" {
			fmt.Fprintf(&b, "%s=%s ", name, value)
		}
	}
	return b.String() + "make bench-peers"
}

// shortened tells whether the run is too short for figures: it only shows that
// everything works.
func (c config) shortened() bool { return c.Seconds < 10 || c.DrainRows < 100_000 || c.Warmup < 30_000 }
