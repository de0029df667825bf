package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/txn/stats"
)

const (
	// startTimeout bounds how long a child may take until it serves: longer than a machine
	// may stand still, for example while its disk is flushed. The death of a child is
	// noticed at once.
	startTimeout = 100 * time.Second
	// recoverTimeout bounds how long a child with data to recover may take.
	recoverTimeout = 24 * time.Hour
)

// child is one data server's process.
type child struct {
	index    placement.Server
	cmd      *exec.Cmd
	lifeline *os.File // closing it, or dying, ends the child
	report   *os.File
	reports  *bufio.Reader // of report
	heard    chan struct{} // closed when no report follows; nil if none is awaited
	stderr   tail
	exited   chan struct{} // closed after Wait
	err      error         // of Wait, once exited is closed
	expected atomic.Bool   // its end is no loss
}

// startChildren starts the data servers as child processes.
func startChildren(ctx context.Context, o StartOptions) (*Cluster, error) {
	if o.Addrs == nil {
		o.Addrs = AbstractAddrs(o.Servers)
	}
	f := &family{opts: o, secret: member.NewSecret(), forks: make(chan func()), release: make(chan struct{}), emptying: make(chan struct{}, 1)}
	if err := f.spawn(); err != nil {
		return nil, errors.Join(err, f.stop())
	}
	if err := f.ready(ctx); err != nil {
		f.kill() // they hold nothing yet that would have to be closed
		return nil, errors.Join(err, f.stop())
	}
	c := newCluster(o.Provider, o.Addrs)
	c.family, c.stop, c.kill, c.emptying = f, f.stop, f.kill, f.emptying
	for i, ch := range f.children {
		switch {
		case errors.Is(f.failed[i], errKeeps): // see finish
			c.pids = append(c.pids, ch.cmd.Process.Pid)
			continue
		case f.failed[i] != nil:
			c.pids = append(c.pids, 0)
			continue
		}
		c.pids = append(c.pids, ch.cmd.Process.Pid)
		c.watch(ch)
	}
	return c, nil
}

// AbstractAddrs returns n names of sockets that are in no file system and that nobody
// can guess.
func AbstractAddrs(n int) []string {
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("@drtmx-%s-%d", hex.EncodeToString(nonce[:]), i)
	}
	return addrs
}

// family is the child processes of one cluster.
type family struct {
	opts     StartOptions
	secret   []byte     // by which the children authenticate each other
	mu       sync.Mutex // guards the elements of children, once all serve
	children []*child
	failed   []error       // why children did not serve at the start; nil for those that did
	forks    chan func()   // run by the thread that forks
	release  chan struct{} // closed when all children are reaped
	emptying chan struct{} // a child asks for the cluster to be emptied
	once     sync.Once
	err      error
}

// spawn forks all children. The parent-death signal is sent when the thread
// that forked ends, not the process, so that thread is held until they are
// reaped.
func (f *family) spawn() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		var err error
		for i := placement.Server(0); int(i) < f.opts.Servers && err == nil; i++ {
			var ch *child
			if ch, err = f.fork(i); err == nil {
				f.children = append(f.children, ch)
			}
		}
		started <- err
		for {
			select {
			case fork := <-f.forks:
				fork()
			case <-f.release:
				return
			}
		}
	}()
	return <-started
}

func (f *family) fork(i placement.Server) (*child, error) {
	ch := &child{index: i, exited: make(chan struct{})}
	lifelineEnd, lifeline, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	defer lifelineEnd.Close()
	report, reportEnd, err := os.Pipe()
	if err != nil {
		lifeline.Close()
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	defer reportEnd.Close()
	ch.lifeline, ch.report, ch.reports = lifeline, report, bufio.NewReader(report)
	command := f.opts.Command
	if h := f.opts.Hosts; h != nil && h.Command != nil {
		command = h.Command(ownHost(i), command)
	}
	ch.cmd = exec.Command(command[0], command[1:]...)
	ch.cmd.ExtraFiles = []*os.File{lifelineEnd, reportEnd} // lifelineFD, reportFD
	cfg := childConfig{Format: Format, Index: i, Addrs: f.opts.Addrs, Size: f.opts.Size, Workload: f.opts.Workload.Name, Secret: f.secret, Supervised: f.opts.Dir != ""}
	if f.opts.members != nil {
		cfg.Members, cfg.Lease, cfg.Size.DataDir = f.opts.members, f.opts.Hosts.Lease, HostDir(f.opts.DataDir, ownHost(i))
	}
	if f.opts.Log.File != nil {
		ch.cmd.ExtraFiles = append(ch.cmd.ExtraFiles, f.opts.Log.File) // logFD
		cfg.Log = &f.opts.Log
	}
	if f.opts.Debug != nil {
		cfg.Debug = f.opts.Debug[i]
	}
	ch.cmd.Stderr = &ch.stderr
	ch.cmd.WaitDelay = time.Second
	// A process group of its own keeps a terminal's Ctrl-C from the child:
	// the parent decides when it ends.
	ch.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := ch.cmd.Start(); err != nil {
		lifeline.Close()
		report.Close()
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	go func() {
		ch.err = ch.cmd.Wait()
		close(ch.exited)
	}()
	if err := writeLine(lifeline, cfg); err != nil && !errors.Is(err, syscall.EPIPE) {
		ch.lifeline.Close()
		return nil, fmt.Errorf("%w: %w", ErrStart, err) // EPIPE: ready finds how the child died
	}
	return ch, nil
}

// ready waits until every child serves.
func (f *family) ready(ctx context.Context) error {
	ctx, cancel := f.limit(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	recovered := make([]*stats.Recovery, len(f.children))
	f.failed = make([]error, len(f.children))
	for i, ch := range f.children {
		wg.Go(func() {
			r, err := f.await(ctx, ch, nil)
			recovered[i], f.failed[i] = r, err
			if err != nil && !errors.Is(err, errKeeps) && (!f.opts.lenient || ctx.Err() != nil) {
				once.Do(func() { first = startError(ch.index, err) })
				cancel() // the other children need not be waited for
			}
		})
	}
	wg.Wait()
	if first == nil && !slices.Contains(f.failed, nil) {
		first = startError(0, f.failed[0])
	}
	if first != nil {
		return first
	}
	for i, r := range recovered {
		if r != nil && f.opts.Recovered != nil {
			f.opts.Recovered(f.children[i].index, r)
		}
	}
	for i, ch := range f.children {
		if f.failed[i] != nil {
			ch.expected.Store(true)
			if errors.Is(f.failed[i], errKeeps) {
				continue
			}
			_ = ch.cmd.Process.Kill()
			ch.bury()
			continue
		}
		ch.heard = make(chan struct{})
		go f.hear(ch)
	}
	f.settle()
	return nil
}

// settle tells all hosts that each of them has had its chance to start.
func (f *family) settle() {
	for _, ch := range f.all() {
		f.tellSettled(ch)
	}
}

// tellSettled tells one host that.
func (f *family) tellSettled(ch *child) {
	if f.opts.members != nil {
		_ = writeLine(ch.lifeline, true) // a child that is gone needs no word
	}
}

// limit bounds how long a child may take until it serves.
func (f *family) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := cmp.Or(f.opts.patience, startTimeout)
	if f.opts.DataDir != "" {
		limit = recoverTimeout
	}
	return context.WithTimeoutCause(ctx, limit, notReadyError{limit})
}

// notReadyError is the cause that ends the wait for a child that neither serves nor
// dies.
type notReadyError struct{ within time.Duration }

func (e notReadyError) Error() string { return fmt.Sprintf("not ready within %v", e.within) }

// startError returns the error of a data server that did not start. It names the server
// once.
func startError(server placement.Server, err error) error {
	if strings.HasPrefix(err.Error(), fmt.Sprintf("server %d: ", server)) {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	return fmt.Errorf("%w: server %d: %w", ErrStart, server, err)
}

// errKeeps reports a host that keeps copies and does not serve yet.
var errKeeps = errors.New("cluster: the host keeps copies until it has its data server back")

// await waits until a child serves, and returns what it has recovered. If a host keeps
// copies before it serves, await calls keeps and goes on; if keeps is nil, it fails
// with errKeeps.
func (f *family) await(ctx context.Context, ch *child, keeps func()) (*stats.Recovery, error) {
	stop := context.AfterFunc(ctx, func() { _ = ch.report.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		line, err := ch.reports.ReadBytes('\n')
		if ctx.Err() != nil {
			err := context.Cause(ctx)
			if errors.As(err, new(notReadyError)) {
				err = fmt.Errorf("%w: %s", err, condition(ch.cmd.Process.Pid))
			}
			return nil, err
		}
		var r childReport
		if err == nil {
			err = json.Unmarshal(line, &r)
		} else if ch.waitExit(closeTimeout) {
			err = ch.death() // says more than the end-of-file it caused
		}
		if err == nil && r.Error != "" {
			err = errors.New(r.Error)
			if r.Elsewhere {
				err = elsewhereError{err}
			}
		}
		switch {
		case err == nil && r.Keeps && keeps == nil:
			return nil, errKeeps
		case err == nil && r.Keeps:
			keeps()
			continue
		case err != nil || r.Recovering == nil:
			return r.Recovered, err
		}
		if f.opts.Recovering != nil {
			f.opts.Recovering(ch.index, *r.Recovering)
		}
	}
}

// elsewhereError is a member.ErrElsewhere that crossed a pipe as text.
type elsewhereError struct{ error }

func (elsewhereError) Unwrap() error { return member.ErrElsewhere }

// hear reads what a child that serves reports, until it ends.
func (f *family) hear(ch *child) {
	defer close(ch.heard)
	for {
		line, err := ch.reports.ReadBytes('\n')
		var r childReport
		if err != nil || json.Unmarshal(line, &r) != nil {
			return
		}
		switch {
		case r.Empty:
			select {
			case f.emptying <- struct{}{}:
			default: // another child has asked
			}
		case (r.Keeps || r.Serves) && f.opts.keeps != nil:
			f.opts.keeps(ownHost(ch.index), r.Keeps)
		}
	}
}

// stop ends all children and waits for them.
func (f *family) stop() error {
	f.once.Do(func() {
		children := f.all()
		for _, ch := range children {
			ch.lifeline.Close()
		}
		deadline := time.Now().Add(closeTimeout + time.Second)
		for _, ch := range children {
			if !ch.waitExit(time.Until(deadline)) {
				_ = ch.cmd.Process.Kill()
				<-ch.exited
				f.err = errors.Join(f.err, fmt.Errorf("cluster: data server %d (pid %d) did not stop and was killed",
					ch.index, ch.cmd.Process.Pid))
			}
			ch.report.Close()
			if ch.heard != nil {
				<-ch.heard
			}
		}
		close(f.release)
	})
	return f.err
}

func (f *family) kill() {
	for _, ch := range f.all() {
		_ = ch.cmd.Process.Kill()
	}
}

func (ch *child) waitExit(limit time.Duration) bool {
	select {
	case <-ch.exited:
		return true
	case <-time.After(limit):
	}
	select { // it may have ended long before the limit, which may be in the past
	case <-ch.exited:
		return true
	default:
		return false
	}
}

// death describes how an exited child ended.
func (ch *child) death() error {
	how := "exited"
	var exit *exec.ExitError
	if errors.As(ch.err, &exit) {
		how = exit.Error()
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			how = fmt.Sprintf("was ended by signal %q", s.Signal())
		}
	}
	if line := ch.stderr.cause(); line != "" {
		how += ": " + line
	}
	return fmt.Errorf("%w: data server %d (pid %d) %s", ErrLost, ch.index, ch.cmd.Process.Pid, how)
}

// tail keeps the beginning and the end of the output written to it. The output
// of a Go crash begins with the reason and ends with the place.
type tail struct {
	mu struct {
		sync.Mutex
		head, last []byte
	}
}

const tailBytes = 16 << 10

// Write implements io.Writer. It drops bytes from the middle.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if room := tailBytes - len(t.mu.head); room > 0 {
		k := min(room, len(p))
		t.mu.head = append(t.mu.head, p[:k]...)
		p = p[k:]
	}
	t.mu.last = append(t.mu.last, p...)
	if over := len(t.mu.last) - tailBytes; over > 0 {
		t.mu.last = append(t.mu.last[:0], t.mu.last[over:]...)
	}
	return n, nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(bytes.Clone(t.mu.head), t.mu.last...)
}

// cause is the line that says why a Go program ended.
func (t *tail) cause() string {
	for line := range bytes.Lines(t.bytes()) {
		for _, prefix := range []string{"panic: ", "fatal error: ", "drtmx: "} {
			if bytes.HasPrefix(line, []byte(prefix)) {
				return string(bytes.TrimSpace(line))
			}
		}
	}
	return ""
}
