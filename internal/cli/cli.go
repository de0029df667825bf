// Package cli is what the commands of this module share: exit statuses,
// signals, errors of usage, and the version.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
)

// Exit statuses.
const (
	ExitOK          = 0
	ExitFailed      = 1   // the command failed, or a consistency condition does not hold
	ExitUsage       = 2   // bad input: nothing was started
	ExitInterrupted = 130 // by SIGINT, SIGTERM or SIGHUP
)

// Version is the release.
const Version = "0.1.0"

// ErrInterrupted is the cause of a context that a signal ended.
var ErrInterrupted = errors.New("interrupted")

// usageError is bad input. Its text names the input and what was expected.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks an error as bad input.
func Usage(err error) error { return usageError{err} }

// Usagef makes an error of bad input.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// IsUsage reports whether an error is bad input.
func IsUsage(err error) bool {
	var u usageError
	return errors.As(err, &u)
}

// Exited is the error of a command that has run another process in its place. It is
// the exit status of that process, which has said why.
type Exited int

func (e Exited) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Output is standard output. It remembers the first error, for those who print
// do not look. Several goroutines may write at once.
type Output struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewOutput returns an Output that writes to w.
func NewOutput(w io.Writer) *Output { return &Output{w: w} }

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.w.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// join adds the first error of the output to err, unless err tells of it.
func (o *Output) join(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil || err != nil && strings.Contains(err.Error(), o.err.Error()) {
		return err
	}
	return errors.Join(err, fmt.Errorf("standard output: %w", o.err))
}

// Program is a command that runs.
type Program struct {
	Name   string
	Stdout *Output
	Stderr io.Writer
	// Exit ends the process: os.Exit.
	Exit func(status int)
	// Signalled, if set, is called with the first signal.
	Signalled func(os.Signal)

	mu     sync.Mutex
	onKill []func()
}

// AtKill arranges for f to run if a second signal ends the process at once.
func (p *Program) AtKill(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onKill = append(p.onKill, f)
}

// WatchSignals makes the first signal end a context and the second one the
// process, until stop is called. Output to a closed pipe is an error from then
// on, and does not end the process.
func (p *Program) WatchSignals(cancel context.CancelCauseFunc) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	pipes := make(chan os.Signal, 1) // never read
	signal.Notify(pipes, syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-signals:
				if n > 0 {
					p.kill()
				}
				if p.Signalled != nil {
					p.Signalled(s)
				}
				cancel(ErrInterrupted)
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		signal.Stop(pipes)
		close(done)
	}
}

// kill ends the process.
func (p *Program) kill() {
	p.mu.Lock()
	for _, f := range p.onKill {
		f()
	}
	p.Exit(ExitInterrupted)
}

// Say prints one line for people. It begins with the name of the program, once.
func (p *Program) Say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	line := strings.Join(lines, "; ")
	for _, begins := range []string{p.Name + ": ", p.Name + " "} { // a text that names the command, as in "drtmx tpcc: ..."
		line = strings.TrimPrefix(line, begins)
	}
	fmt.Fprintln(p.Stderr, p.Name+": "+line)
}

// Status prints an error, or that of the output, as one line and returns the
// exit status for it.
func (p *Program) Status(err error) int {
	if err = p.Stdout.join(err); err == nil {
		return ExitOK
	}
	var exited Exited
	if errors.As(err, &exited) {
		return int(exited)
	}
	p.Say("%v", err)
	switch {
	case errors.Is(err, ErrInterrupted):
		return ExitInterrupted
	case IsUsage(err):
		return ExitUsage
	}
	return ExitFailed
}

// Revision is the commit that the binary was built from: the one given, else
// the one that the toolchain has recorded, else "unknown".
func Revision(commit string) string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

// Build describes the binary, in the words of --version.
func Build(commit string) string {
	return fmt.Sprintf("commit %s, %s, %s/%s", Revision(commit), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
