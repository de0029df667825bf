package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"drtmx/internal/sim"
	"drtmx/internal/sim/goruntime"
)

// binary is a test binary of package server, and a directory that its processes run in.
type binary struct{ path, dir string }

// build makes the binary in a directory, unless there is one already that is to be used.
func build(ctx context.Context, dir string, o *options) (*binary, error) {
	b := &binary{filepath.Join(dir, "server.test"), filepath.Join(dir, "runs")}
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

// ran is the result of a process.
type ran struct {
	results []sim.Result // of the seeds that have ended
	other   string       // what else it printed
	err     error
}

// process simulates n seeds, from that of the case on, in one process.
func (b *binary) process(ctx context.Context, c simCase, n uint64, environ ...string) ran {
	cmd := exec.CommandContext(ctx, b.path, "-test.run=^TestSimulation$", "-test.timeout=0")
	cmd.Dir = b.dir
	cmd.Env = append(append(os.Environ(), "DRTMX_SIM=", "DRTMX_SEED=", "GOMAXPROCS=1"), append(c.environ(n), environ...)...)
	out, err := cmd.CombinedOutput()
	x := ran{err: err}
	var other strings.Builder
	for line := range strings.Lines(string(out)) {
		if r, ok := sim.ParseResult(strings.TrimSuffix(line, "\n")); ok {
			x.results = append(x.results, r)
		} else {
			other.WriteString(line)
		}
	}
	x.other = strings.ToValidUTF8(other.String(), "")
	return x
}
