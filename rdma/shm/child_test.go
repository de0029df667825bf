package shm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// roleEnv makes the test binary a child: "role arg arg". A child prints what
// its parent waits for as lines and ends when its standard input does.
const roleEnv = "DRTMX_SHM_TEST_ROLE"

var roles = map[string]func(args []string) error{
	"server":  serverRole,
	"client":  clientRole,
	"idle":    idleRole,
	"futex":   func([]string) error { return pongRole(futexPing) },
	"eventfd": func([]string) error { return pongRole(eventfdPing) },
}

func childMain(role string) int {
	args := strings.Fields(role)
	if err := roles[args[0]](args[1:]); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// child is a process started by start.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	err   bytes.Buffer
}

func start(t testing.TB, role string, files ...*os.File) *child {
	t.Helper()
	return startAs(t, role, nil, files...)
}

func startAs(t testing.TB, role string, user *syscall.Credential, files ...*os.File) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role)
	c.cmd.ExtraFiles = files
	c.cmd.Stderr = &c.err
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	return c
}

// stop asks the child to end, and makes sure.
func (c *child) stop() {
	c.stdin.Close()
	timer := time.AfterFunc(10*time.Second, func() { c.cmd.Process.Kill() })
	defer timer.Stop()
	_ = c.cmd.Wait()
	if c.err.Len() > 0 {
		c.t.Errorf("a child wrote to standard error: %s", c.err.String())
	}
}

// kill is kill -9.
func (c *child) kill() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = c.cmd.Wait()
}

// line reads what the child says next.
func (c *child) line() string {
	c.t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("child %v: %v; %s", c.cmd.Env[len(c.cmd.Env)-1], err, c.err.String())
	}
	return strings.TrimSpace(s)
}

func (c *child) expect(want string) {
	c.t.Helper()
	if got := c.line(); got != want {
		c.t.Fatalf("child says %q, want %q", got, want)
	}
}

func (c *child) tell(s string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.stdin, s); err != nil {
		c.t.Fatal(err)
	}
}

// cpu is the processor time the child has used.
func (c *child) cpu() time.Duration {
	c.t.Helper()
	c.tell("cpu")
	n, err := strconv.ParseInt(c.line(), 10, 64)
	if err != nil {
		c.t.Fatal(err)
	}
	return time.Duration(n)
}

func cpuTime() time.Duration {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		panic(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// startServer runs serverRole and waits until it listens.
func startServer(t testing.TB, addr string, opts string) *child {
	t.Helper()
	c := start(t, "server "+addr+" "+opts)
	c.expect("listening")
	return c
}

// serverRole echoes. A request "die" kills the process, "hang" is never
// answered, "later" from another goroutine.
func serverRole(args []string) error {
	o, err := parseOptions(args[1:])
	if err != nil {
		return err
	}
	p, err := New(o)
	if err != nil {
		return err
	}
	var gone atomic.Int64
	e, err := p.Listen(args[0], rdma.ListenOptions{OnDisconnect: func(rdma.PeerID) { gone.Add(1) }})
	if err != nil {
		return err
	}
	defer e.Close()
	r, err := sharedRegion(mem.Options{Name: args[0], SegmentBytes: 1 << 20, MaxBytes: 1 << 24})
	if err != nil {
		return err
	}
	rdmatest.FillPattern(r, 0, r.Size())
	if _, err := e.Register(r, rdma.AccessRead); err != nil {
		return err
	}
	if err := e.Serve(serverHandler); err != nil {
		return err
	}
	fmt.Println("listening")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "cpu":
			fmt.Println(int64(cpuTime()))
		case "gone":
			fmt.Println(gone.Load())
		case "rpcs":
			fmt.Println(e.Counters().RPCs)
		case "grow":
			if _, err := r.Grow(); err != nil {
				return err
			}
			rdmatest.FillPattern(r, 0, r.Size())
			fmt.Println(r.Size())
		}
	}
	return nil
}

func serverHandler(q *rdma.Request) {
	switch string(q.Body) {
	case "die":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	case "hang":
	case "later":
		go func() { _ = q.Reply([]byte("later")) }()
	default:
		_ = q.Reply(q.Body)
	}
}

func parseOptions(args []string) (o Options, err error) {
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "spin":
			o.Spin, err = time.ParseDuration(v)
		case "pollers":
			o.Pollers, err = strconv.Atoi(v)
		default:
			err = fmt.Errorf("option %q", a)
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

// clientRole makes args[1] calls and READs on one connection and checks them.
func clientRole(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	p, err := New(Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := p.Dial(ctx, args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	var resp []byte
	var b rdma.Batch
	buf := make([]uint64, 64)
	for i := range n {
		req := bytes.Repeat([]byte{byte(i)}, 1+i*37%5000)
		if resp, err = rdma.Call(ctx, c, req, resp); err != nil {
			return err
		}
		if !bytes.Equal(req, resp) {
			return fmt.Errorf("call %d: another client's answer", i)
		}
		b.Reset()
		addr := uint64(i*64) % (1 << 19)
		b.Read(1, addr, buf)
		if err := rdma.Do(ctx, c, &b); err != nil {
			return err
		}
		if w, ok := rdmatest.HasPattern(buf, addr); !ok {
			return fmt.Errorf("READ %d: word %d is wrong", i, w)
		}
	}
	fmt.Println("done")
	return nil
}

// idleRole opens args[1] connections, starts a call on each that the server
// never answers if args[2] says so, and waits to be ended.
func idleRole(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	p, err := New(Options{})
	if err != nil {
		return err
	}
	for range n {
		c, err := p.Dial(context.Background(), args[0])
		if err != nil {
			return err
		}
		if len(args) > 2 {
			if err := c.StartCall(context.Background(), []byte(args[2])); err != nil {
				return err
			}
		}
	}
	fmt.Println("idle")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// Bare ping-pong between two processes, the measure for a round trip.

// ping is one side: word mine is waited for, word other is set. Both lie in a
// shared page, on lines of their own.
type ping struct {
	page    mem.Span
	mine    int
	other   int
	mineFD  int
	otherFD int
}

type pinger struct {
	wait func(p *ping, until uint64)
	wake func(p *ping)
}

var futexPing = pinger{
	wait: func(p *ping, until uint64) {
		for v := p.page.Load(p.mine); v < until; v = p.page.Load(p.mine) {
			p.page.FutexWait(p.mine, v, 0)
		}
	},
	wake: func(p *ping) { p.page.FutexWake(p.other, 1) },
}

var eventfdPing = pinger{
	wait: func(p *ping, until uint64) {
		var b [8]byte
		for p.page.Load(p.mine) < until {
			_, _ = unix.Read(p.mineFD, b[:])
		}
	},
	wake: func(p *ping) { _, _ = unix.Write(p.otherFD, eventOne) },
}

const pingStop = 1 << 40

func pongRole(g pinger) error {
	page, err := mem.OpenControl(os.NewFile(3, "page"), pageBytes)
	if err != nil {
		return err
	}
	p := &ping{page.Span(0, pageBytes), 0, 8, 4, 5}
	fmt.Println("ready")
	for i := uint64(1); ; i++ {
		g.wait(p, i)
		if p.page.Load(p.mine) >= pingStop {
			return nil
		}
		p.page.Store(p.other, i)
		g.wake(p)
	}
}

// startPong starts the other process of a bare ping-pong and returns one
// round trip of it.
func startPong(t testing.TB, role string, g pinger) func() {
	t.Helper()
	page, err := mem.NewControl("ping", pageBytes)
	if err != nil {
		t.Skipf("SKIP: %v", err)
	}
	files := []*os.File{page.File()}
	for range 2 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, os.NewFile(uintptr(fd), "eventfd"))
	}
	p := &ping{page.Span(0, pageBytes), 8, 0, int(files[2].Fd()), int(files[1].Fd())}
	c := start(t, role, files...)
	c.expect("ready")
	t.Cleanup(func() {
		p.page.Store(p.other, pingStop)
		g.wake(p)
		for _, f := range files {
			f.Close()
		}
		_ = page
	})
	i := uint64(0)
	return func() {
		i++
		p.page.Store(p.other, i)
		g.wake(p)
		g.wait(p, i)
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

func collect() {
	runtime.GC()
	time.Sleep(time.Millisecond)
}
