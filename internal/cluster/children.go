package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// startTimeout bounds how long a child may take until it serves.
const startTimeout = 30 * time.Second

// child is one data server's process.
type child struct {
	index    int
	cmd      *exec.Cmd
	lifeline *os.File // closing it, or dying, ends the child
	report   *os.File
	stderr   tail
	exited   chan struct{} // closed after Wait
	err      error         // of Wait, once exited is closed
}

// startChildren starts the data servers as child processes.
func startChildren(ctx context.Context, o StartOptions) (*Cluster, error) {
	if o.Addrs == nil {
		o.Addrs = AbstractAddrs(o.Servers)
	}
	f := &family{opts: o, secret: newSecret(), release: make(chan struct{})}
	if err := f.spawn(); err != nil {
		return nil, errors.Join(err, f.stop())
	}
	if err := f.ready(ctx); err != nil {
		f.kill() // they hold nothing yet that would have to be closed
		return nil, errors.Join(err, f.stop())
	}
	c := newCluster(o.Provider, o.Addrs)
	c.stop, c.kill = f.stop, f.kill
	for _, ch := range f.children {
		c.pids = append(c.pids, ch.cmd.Process.Pid)
		go func() {
			<-ch.exited
			c.fail(ch.death(), ch.stderr.bytes())
		}()
	}
	return c, nil
}

// AbstractAddrs are names of as many sockets that no file system holds and
// nobody can guess.
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
	secret   []byte // by which the children know each other
	children []*child
	release  chan struct{} // closed when all children are reaped
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
		for i := 0; i < f.opts.Servers && err == nil; i++ {
			var ch *child
			if ch, err = f.fork(i); err == nil {
				f.children = append(f.children, ch)
			}
		}
		started <- err
		<-f.release
	}()
	return <-started
}

func (f *family) fork(i int) (*child, error) {
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
	ch.lifeline, ch.report = lifeline, report
	ch.cmd = exec.Command(f.opts.Command[0], f.opts.Command[1:]...)
	ch.cmd.ExtraFiles = []*os.File{lifelineEnd, reportEnd} // lifelineFD, reportFD
	cfg := childConfig{Format: Format, Index: i, Addrs: f.opts.Addrs, Size: f.opts.Size, Workload: f.opts.Workload.Name, Secret: f.secret}
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
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, ch := range f.children {
		stop := context.AfterFunc(ctx, func() { _ = ch.report.SetReadDeadline(time.Now()) })
		line, err := bufio.NewReader(ch.report).ReadBytes('\n')
		stop()
		ch.report.Close()
		if ctx.Err() != nil {
			return fmt.Errorf("%w: server %d: %w", ErrStart, ch.index, context.Cause(ctx))
		}
		var r childReport
		if err == nil {
			err = json.Unmarshal(line, &r)
		} else if ch.waitExit(closeTimeout) {
			err = ch.death() // says more than the end-of-file it caused
		}
		if err == nil && r.Error != "" {
			err = errors.New(r.Error)
		}
		if err != nil {
			return fmt.Errorf("%w: server %d: %w", ErrStart, ch.index, err)
		}
	}
	return nil
}

// stop ends all children and waits for them.
func (f *family) stop() error {
	f.once.Do(func() {
		for _, ch := range f.children {
			ch.lifeline.Close()
		}
		deadline := time.Now().Add(closeTimeout + time.Second)
		for _, ch := range f.children {
			if !ch.waitExit(time.Until(deadline)) {
				_ = ch.cmd.Process.Kill()
				<-ch.exited
				f.err = errors.Join(f.err, fmt.Errorf("cluster: data server %d (pid %d) did not stop and was killed",
					ch.index, ch.cmd.Process.Pid))
			}
			ch.report.Close()
		}
		close(f.release)
	})
	return f.err
}

func (f *family) kill() {
	for _, ch := range f.children {
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
