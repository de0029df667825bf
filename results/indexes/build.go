package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// compileFlags are those of g++ for all peers.
var compileFlags = []string{"-O3", "-march=native", "-std=c++17", "-DNDEBUG", "-pthread", "-w"}

// build fetches and compiles a peer, and returns its program.
func (p *peer) build(ctx context.Context, sources, cache, bin string) (program string, err error) {
	checkout, err := p.fetch(ctx, cache)
	if err != nil {
		return "", fmt.Errorf("could not fetch %s: %w", p.url, err)
	}
	program = filepath.Join(bin, p.program)
	if _, err := output(ctx, checkout, nil, "g++", p.compilation(sources, checkout, program)...); err != nil {
		return "", fmt.Errorf("could not compile it: %w", err)
	}
	return program, nil
}

// fetch returns a checkout of the pinned commit. The cache may have it already.
func (p *peer) fetch(ctx context.Context, cache string) (dir string, err error) {
	dir, err = filepath.Abs(filepath.Join(cache, p.program+"-"+p.commit[:12]))
	if err != nil {
		return "", err
	}
	git := func(args ...string) (string, error) { return output(ctx, dir, nil, "git", args...) }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, ".git")); errors.Is(err, os.ErrNotExist) {
		if _, err := git("init", "-q"); err != nil {
			return "", err
		}
	}
	at := func() string {
		head, _ := git("rev-parse", "--quiet", "--verify", "HEAD")
		return strings.TrimSpace(head)
	}
	if at() != p.commit {
		limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		if _, err := output(limited, dir, []string{"GIT_TERMINAL_PROMPT=0"}, "git", "fetch", "-q", "--depth", "1", p.url, p.commit); err != nil {
			return "", err
		}
		if _, err := git("checkout", "-q", "--force", p.commit); err != nil {
			return "", err
		}
	}
	if got := at(); got != p.commit {
		return "", fmt.Errorf("it is at commit %s, want %s", got, p.commit)
	}
	return dir, nil
}

// compilation returns the arguments of g++.
func (p *peer) compilation(sources, checkout, program string) []string {
	args := append([]string{}, compileFlags...)
	for _, f := range p.flags {
		args = append(args, strings.NewReplacer("@", checkout, "!", sources).Replace(f))
	}
	args = append(args, "-I"+sources, filepath.Join(sources, p.program+".cc"))
	for _, f := range p.compile {
		args = append(args, filepath.Join(checkout, f))
	}
	return append(args, "-o", program)
}

// output runs a program and returns what it printed. An error has the last line of
// standard error.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(failed.String()), "\n")
		why := err.Error()
		if last := lines[len(lines)-1]; last != "" {
			why = last + " (" + why + ")"
		}
		return string(out), fmt.Errorf("%s: %s", filepath.Base(name), why)
	}
	return string(out), nil
}
