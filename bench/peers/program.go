package main

import "context"

// program is a peer that is one process with no state of its own: to pause it
// is to stop it.
type program struct {
	// args and env are those of its process.
	args func(*stage) []string
	env  func(*stage) []string
	*process
}

func (p *program) start(ctx context.Context, s *stage) (err error) {
	p.process, err = startProcess(ctx, Command{Args: p.args(s), Env: p.env(s), Dir: s.dir, Log: s.log})
	return err
}

func (p *program) pause(context.Context) error { return p.Stop() }

func (p *program) resume(ctx context.Context, s *stage) error { return p.start(ctx, s) }

func (p *program) cleanUp(context.Context, *stage) error { return nil }
