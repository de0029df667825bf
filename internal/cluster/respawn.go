package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"drtmx/internal/placement"
)

// errNoChild reports a data server that is not a process of this one.
var errNoChild = errors.New("it is no process that this one has started")

// KillServer ends a data server of a child process with SIGKILL and waits for its
// end, which is not a loss of the cluster. StartServer starts it again.
func (c *Cluster) KillServer(i placement.Server) error {
	if c.family == nil {
		return fmt.Errorf("%w: data server %d: %w", ErrOptions, i, errNoChild)
	}
	ch := c.family.child(i)
	ch.expected.Store(true)
	err := ch.cmd.Process.Kill()
	ch.bury()
	return err
}

// endServer makes a data server of a child process stop, and waits for its end. One that
// does not stop in time is killed.
func (c *Cluster) endServer(i placement.Server) error {
	ch := c.family.child(i)
	ch.expected.Store(true)
	_ = ch.lifeline.Close()
	if ch.waitExit(closeTimeout + time.Second) {
		ch.bury()
		return nil
	}
	return c.KillServer(i)
}

// StartServer starts a data server that KillServer has ended, and returns when it
// serves. If ctx ends before, the data server is killed again.
func (c *Cluster) StartServer(ctx context.Context, i placement.Server) error {
	return c.startServer(ctx, i, nil)
}

// startServer is StartServer for a host that may keep copies before it serves; then it
// calls keeps.
func (c *Cluster) startServer(ctx context.Context, i placement.Server, keeps func()) error {
	f := c.family
	if f == nil {
		return fmt.Errorf("%w: data server %d: %w", ErrOptions, i, errNoChild)
	}
	done := make(chan error, 1)
	var ch *child
	select {
	case f.forks <- func() {
		var err error
		ch, err = f.fork(i)
		done <- err
	}:
	case <-f.release: // the cluster was stopped
		return startError(i, ErrLost)
	}
	if err := <-done; err != nil {
		return err
	}
	ch.expected.Store(true) // until it serves
	f.mu.Lock()
	f.children[i] = ch
	f.mu.Unlock()
	return c.finish(ctx, ch, false, keeps)
}

// errLeaves is the cause that ends the wait for a host that keeps copies, when all
// hosts are closed.
var errLeaves = errors.New("cluster: the supervisor leaves")

// errStops is the cause that ends the wait for a host that keeps copies, when it is to
// stop.
var errStops = errors.New("cluster: the host is stopped")

// finish waits until a child that was started serves. kept says that it is a host that
// keeps copies already.
func (c *Cluster) finish(ctx context.Context, ch *child, kept bool, keeps func()) error {
	f := c.family
	ctx, cancel := f.limit(ctx)
	defer cancel()
	var heard func()
	if keeps != nil {
		heard = func() {
			kept = true
			keeps()
		}
	}
	if _, err := f.await(ctx, ch, heard); err != nil {
		if kept && errors.Is(context.Cause(ctx), errLeaves) {
			return err
		}
		if errors.Is(context.Cause(ctx), errStops) {
			_ = ch.lifeline.Close()
			ch.waitExit(closeTimeout + time.Second)
		}
		_ = ch.cmd.Process.Kill()
		ch.bury()
		return startError(ch.index, err)
	}
	ch.heard = make(chan struct{})
	go f.hear(ch)
	f.tellSettled(ch)
	c.watch(ch)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pids = slices.Clone(c.pids)
	c.pids[ch.index] = ch.cmd.Process.Pid
	return nil
}

// watch reports the end of a child that serves as a loss.
func (c *Cluster) watch(ch *child) {
	ch.expected.Store(false)
	go func() {
		<-ch.exited
		switch {
		case ch.expected.Load():
		case c.family.opts.ended != nil:
			c.family.opts.ended(ownHost(ch.index), ch.death())
		default:
			c.fail(ch.death(), ch.stderr.bytes())
		}
	}()
}

// bury waits for the end of a child and releases what this process has of it.
func (ch *child) bury() {
	<-ch.exited
	ch.lifeline.Close()
	ch.report.Close()
	if ch.heard != nil {
		<-ch.heard
	}
}

func (f *family) child(i placement.Server) *child {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.children[i]
}

// all returns the present children.
func (f *family) all() []*child {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.children)
}
