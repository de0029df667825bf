package cluster

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/server"
)

// The processes around data servers are tested with servers that do nothing:
// what counts is who starts, ends and notices whom.

// fakeProvider is a fabric nobody uses.
type fakeProvider struct{ rdma.Provider }

func (fakeProvider) Name() string { return "fake" }

type fakeServer struct{}

func (s fakeServer) Close() error { return nil }

// fakeDebug says to all who connect that it is there.
func fakeDebug(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "debug\n")
		c.Close()
	}
}

// fakeStart serves by touching its socket, if it has one in a directory.
func fakeStart(o server.Config) (dataServer, error) {
	if o.Log != nil {
		o.Log.Info("started", "server", o.Index)
		o.Log.Debug("too much")
	}
	if a := o.Addrs[o.Index]; strings.HasPrefix(a, "/") {
		return fakeServer{}, os.WriteFile(a, nil, 0o600)
	}
	return fakeServer{}, nil
}

// lookup names the ways in which a child can behave.
func lookup(name string) (Workload, error) {
	switch name {
	case "fine":
		return Workload{}, nil
	case "unknown":
		return Workload{}, errors.New("no such workload")
	case "crash":
		panic("a planted crash")
	case "hang":
		time.Sleep(time.Hour)
	}
	return Workload{}, nil
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "child":
			startServer = fakeStart
			if err := RunChild(context.Background(), ChildOptions{Provider: fakeProvider{}, Lookup: lookup, Debug: fakeDebug}); err != nil {
				fmt.Fprintln(os.Stderr, "drtmx: "+err.Error())
				os.Exit(1)
			}
			os.Exit(0)
		case "host":
			hostMain()
		case "impostor":
			impostorMain(os.Args[2], os.Args[3])
		case "member":
			memberMain(os.Args[2:])
		case "parent": // starts two children and waits to be killed
			c, err := Start(context.Background(), options("fine", 2))
			if err != nil {
				panic(err)
			}
			fmt.Println(c.PIDs()[0], c.PIDs()[1])
			select {}
		}
	}
	if err := flag.Set("test.parallel", "4"); err != nil { // tests mostly wait
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func options(workload string, servers int) StartOptions {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return StartOptions{
		Size: Size{Servers: servers}, Provider: fakeProvider{}, Command: []string{exe, "child"}, Workload: Workload{Name: workload},
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testseed.Patience()); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %v: %s", testseed.Patience(), what)
}

func TestChildrenLiveAndEndWithTheCluster(t *testing.T) {
	c, err := Start(t.Context(), options("fine", 3))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.PIDs()) != 3 || len(c.Addrs()) != 3 || !strings.HasPrefix(c.Addrs()[0], "@drtmx-") || c.Fabric() != "fake" {
		t.Errorf("pids %v, addresses %v, fabric %s", c.PIDs(), c.Addrs(), c.Fabric())
	}
	for _, pid := range c.PIDs() {
		if !alive(pid) {
			t.Errorf("child %d is not there", pid)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range c.PIDs() {
		if alive(pid) {
			t.Errorf("child %d survived Close", pid)
		}
	}
	if err := c.Err(); err != nil {
		t.Errorf("closing counts as a loss: %v", err)
	}
}

// TestKilledServerStartsAgain: a child that KillServer ends is no loss, and another
// one takes its place, whose end is one.
func TestKilledServerStartsAgain(t *testing.T) {
	c, err := Start(t.Context(), options("fine", 2))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		first := c.PIDs()[1]
		if err := c.KillServer(1); err != nil || alive(first) {
			t.Fatalf("killed: %v; alive: %v", err, alive(first))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.StartServer(ended, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("a start that is cancelled: %v", err)
		}
		if err := c.StartServer(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if now := c.PIDs()[1]; now == first || !alive(now) || !alive(c.PIDs()[0]) {
			t.Errorf("processes %v, before %d", c.PIDs(), first)
		}
		if err := c.Err(); err != nil {
			t.Errorf("a loss: %v", err)
		}
	}
	if err := syscall.Kill(c.PIDs()[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Lost()
	err = newCluster(fakeProvider{}, []string{"a"}).KillServer(0)
	if !errors.Is(err, ErrOptions) {
		t.Errorf("a data server of this process: %v", err)
	}
}

func TestKilledChildIsALoss(t *testing.T) {
	c, err := Start(t.Context(), options("fine", 2))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = syscall.Kill(c.PIDs()[1], syscall.SIGKILL)
	select {
	case <-c.Lost():
	case <-time.After(testseed.Patience()):
		t.Fatal("the loss went unnoticed")
	}
	want := fmt.Sprintf("data server 1 (pid %d) was ended by signal %q", c.PIDs()[1], "killed")
	if err := c.Err(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %q, want one with %q", err, want)
	}
}

func TestChildThatCannotServe(t *testing.T) {
	for workload, want := range map[string]string{
		"unknown": "no such workload",
		"crash":   "panic: a planted crash",
	} {
		c, err := Start(t.Context(), options(workload, 2))
		if !errors.Is(err, ErrStart) || !strings.Contains(fmt.Sprint(err), want) || c != nil {
			t.Errorf("%s: error %v, want ErrStart with %q", workload, err, want)
		}
	}
	o := options("fine", 1)
	o.Command = []string{"/no/such/binary"}
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrStart) {
		t.Errorf("error %v, want ErrStart", err)
	}
	o.Command = []string{"/bin/true"}
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrStart) {
		t.Errorf("error %v, want ErrStart", err)
	}
}

func TestStartIsCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := Start(ctx, options("hang", 2))
	if !errors.Is(err, ErrStart) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline's", err)
	}
}

func TestStuckChildIsKilled(t *testing.T) {
	c, err := Start(t.Context(), options("fine", 2))
	if err != nil {
		t.Fatal(err)
	}
	pid := c.PIDs()[0]
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	eventually(t, "the child stops", func() bool { return state(pid) == "T" })
	if err := c.Close(); err == nil || strings.Count(err.Error(), "did not stop") != 1 || !strings.Contains(err.Error(), "data server 0") {
		t.Errorf("error %v, want one that says so of server 0 alone", err)
	}
	for _, pid := range c.PIDs() {
		if alive(pid) {
			t.Errorf("child %d survived Close", pid)
		}
	}
}

func TestChildrenEndWhenTheParentIsKilled(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(exe, "parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range strings.Fields(line) {
		pid, err := strconv.Atoi(f)
		if err != nil || !alive(pid) {
			t.Fatalf("child %q is not there: %v", f, err)
		}
		pids = append(pids, pid)
	}
	_ = parent.Process.Kill()
	_ = parent.Wait()
	for _, pid := range pids {
		eventually(t, fmt.Sprintf("child %d ends", pid), func() bool { return !running(pid) })
	}
}

// state is a process's letter in the process table, "" if it is not there.
func state(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return after[:1]
}

// running is alive, but not for a process that only waits to be reaped by an
// init that this machine may not have.
func running(pid int) bool { return state(pid) != "" && state(pid) != "Z" }

// Options are refused with all their faults.
func TestOptionsAreChecked(t *testing.T) {
	for _, s := range []Size{{}, {Servers: -1}, {Servers: MaxServers + 1}, {Servers: 4, Partitions: 3}, {Servers: 1, Partitions: MaxPartitions + 1}} {
		if _, err := Start(t.Context(), StartOptions{Size: s, Provider: fakeProvider{}}); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: error %v, want ErrOptions", s, err)
		}
	}
	s := Size{Servers: 4}
	if faults := s.faults(); faults != nil || s.Partitions != 4 {
		t.Errorf("%+v: %v", s, faults)
	}
	all := func(err error, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), text) {
				t.Errorf("error %v, want ErrOptions with %q", err, text)
			}
		}
	}
	_, err := Start(t.Context(), StartOptions{Dir: "d", Debug: make([]string, 3), Addrs: make([]string, 2)})
	all(err, "0 data servers", "no provider", "3 debug sockets", "2 addresses", "no command")
	_, err = Join(t.Context(), JoinOptions{Size: Size{Servers: 2}, Index: 2})
	all(err, "no provider", "data server 2 of 2", "0 addresses")
	_, err = Join(t.Context(), JoinOptions{Size: Size{Servers: 2, Partitions: 4}, MemoryBytes: 1 << 20, Dir: strings.Repeat("x", 200)})
	all(err, "1 MiB of memory, want at least 128 MiB", "200 bytes")
	_, err = Connect(t.Context(), ConnectOptions{Dir: "d", Addrs: make([]string, MaxServers+1)})
	all(err, "want an address, a directory or", "addresses, want at most")
	_, err = NewFabrics(multi.Options{}, "pigeon")
	all(err, `fabric "pigeon"`)
}

func TestTailKeepsBothEnds(t *testing.T) {
	var w tail
	fmt.Fprintln(&w, "some line")
	fmt.Fprintln(&w, "panic: first cause")
	for i := range 10000 {
		fmt.Fprintln(&w, "line", i)
	}
	b := string(w.bytes())
	if w.cause() != "panic: first cause" || !strings.HasSuffix(b, "line 9999\n") || len(b) > 2*tailBytes {
		t.Errorf("cause %q, %d bytes", w.cause(), len(b))
	}
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "drtmx-test-") // t.TempDir's name may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "run")
}

func TestChildrenLogAndDebug(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o := options("fine", 2)
	o.Log, o.Debug = Log{File: f, Level: slog.LevelInfo, JSON: true}, AbstractAddrs(2)
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range o.Debug {
		conn, err := net.Dial("unix", addr)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || string(text) != "debug\n" {
			t.Errorf("debug socket: %q, %v", text, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"msg":"started","server":0`, `"msg":"started","server":1`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the log lacks %s: %s", want, b)
		}
	}
	if strings.Contains(string(b), "too much") || len(c.Output()) > 0 {
		t.Errorf("log %s, standard error %q", b, c.Output())
	}
	o.Debug = o.Debug[:1]
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrOptions) {
		t.Errorf("one debug socket for two servers: %v", err)
	}
}

func TestLoopbackAddrs(t *testing.T) {
	addrs, err := LoopbackAddrs(8)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, a := range addrs {
		if seen[a] || !strings.HasPrefix(a, "127.0.0.1:") {
			t.Errorf("addresses %v", addrs)
		}
		seen[a] = true
	}
	o := options("fine", 2)
	o.Addrs = addrs
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrOptions) {
		t.Errorf("8 addresses for 2 servers: %v", err)
	}
}
