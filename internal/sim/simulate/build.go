package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"drtmx/internal/sim"
	"drtmx/internal/sim/goruntime"
)

// binary is a test binary of package server, and a directory that its processes run in.
type binary struct {
	path, dir string
	silence   time.Duration // for which a process may print nothing
}

// build makes the binary in a directory, unless there is one already that is to be used.
func build(ctx context.Context, dir string, o *options) (*binary, error) {
	b := &binary{filepath.Join(dir, "server.test"), filepath.Join(dir, "runs"), silenceMax * o.patience}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, err
	}
	if o.binary != "" {
		b.path = o.binary
		if _, err := os.Stat(b.path); err == nil {
			return b, nil
		}
	}
	var more struct{ Replace map[string]string }
	if o.overlay != "" {
		raw, err := os.ReadFile(o.overlay)
		if err == nil {
			err = json.Unmarshal(raw, &more)
		}
		if err != nil {
			return nil, fmt.Errorf("-overlay: %w", err)
		}
	}
	overlay, err := goruntime.Overlay(dir, more.Replace)
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOMOD: %w", err)
	}
	args := []string{"test", "-c", "-vet=off", "-overlay", overlay, "-tags", goruntime.Tag + " invariants", "-o", b.path}
	if o.race {
		args = append(args, "-race")
	} else {
		args = append(args, "-ldflags=-s -w")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./server")...)
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(out)))
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %v\n%s", err, cmd, out)
	}
	return b, nil
}

// knows asks the binary whether there is such a kind of cluster.
func (b *binary) knows(ctx context.Context, kind string) error {
	if kind == "" {
		return nil
	}
	x := b.process(ctx, simCase{Seed: 1, Kind: kind}, 0)
	if x.err == nil {
		return nil
	}
	if _, want, ok := strings.Cut(x.other, ", want "); ok {
		want, _, _ = strings.Cut(want, "\n")
		return fmt.Errorf("-kind %q: want %s", kind, want)
	}
	return fmt.Errorf("-kind %q: %w\n%s", kind, x.err, x.other)
}

// silenceMax is how many times as long as a seed mostly may take a process may print
// nothing. What never ends often takes more and more memory, too.
const silenceMax = 4

var errSilent = errors.New("the process has printed nothing")

// watched is what a process prints, each time within some time.
type watched struct {
	strings.Builder
	timer *time.Timer
	after time.Duration
}

// Write implements io.Writer.
func (w *watched) Write(b []byte) (int, error) {
	w.timer.Reset(w.after)
	return w.Builder.Write(b)
}

// ran is the result of a process.
type ran struct {
	results []sim.Result // of the seeds that have ended
	other   string       // what else it printed
	err     error
}

// process simulates n seeds, from that of the case on, in one process.
func (b *binary) process(ctx context.Context, c simCase, n uint64, environ ...string) ran {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &watched{timer: time.AfterFunc(b.silence, func() { cancel(errSilent) }), after: b.silence}
	defer out.timer.Stop()
	cmd := exec.CommandContext(ctx, b.path, "-test.run=^TestSimulation$", "-test.timeout=0")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = b.dir
	cmd.Env = append(append(os.Environ(), "DRTMX_SIM=", "DRTMX_SEED=", "GOMAXPROCS=1"), append(c.environ(n), environ...)...)
	x := ran{err: cmd.Run()}
	if cause := context.Cause(ctx); x.err != nil && cause == errSilent {
		x.err = fmt.Errorf("%w for %v: a seed does not end", errSilent, b.silence)
	}
	var other strings.Builder
	for line := range strings.Lines(out.String()) {
		if r, ok := sim.ParseResult(strings.TrimSuffix(line, "\n")); ok {
			x.results = append(x.results, r)
		} else {
			other.WriteString(line)
		}
	}
	x.other = strings.ToValidUTF8(other.String(), "")
	return x
}
