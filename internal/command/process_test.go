package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"drtmx/internal/cli"
	"drtmx/internal/testseed"
	"drtmx/tpcc/bench"
)

// The tests of this file end processes and look at what remains.

// program is a running drtmx.
type program struct {
	*exec.Cmd
	temp   string // its directory for temporary files
	stdout bytes.Buffer
	mu     sync.Mutex
	stderr []string
	news   chan struct{} // a line has come
	over   chan struct{} // stderr has ended
	code   int           // its exit status, if strike ran it
}

// binary makes this test binary callable under the program's name, which is
// how TestMain knows what to be. Data servers are started from it too.
func binary(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "drtmx")
	if os.Link(self, path) == nil {
		return path
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func launch(t *testing.T, args ...string) *program {
	t.Helper()
	if !haveShm() {
		t.Skip("no shared memory between processes")
	}
	p := &program{temp: t.TempDir(), news: make(chan struct{}, 1), over: make(chan struct{})}
	p.Cmd = exec.Command(binary(t), args...)
	p.Env = append(os.Environ(), "TMPDIR="+p.temp)
	p.Stdout = &p.stdout
	in, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	go p.listen(in)
	return p
}

func (p *program) listen(in io.Reader) {
	defer close(p.over)
	for s := bufio.NewScanner(in); s.Scan(); {
		p.mu.Lock()
		p.stderr = append(p.stderr, s.Text())
		p.mu.Unlock()
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
}

func (p *program) said(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(strings.Join(p.stderr, "\n"), what)
}

// patience is how long a program may take for what takes a second.
func patience() time.Duration {
	if haveVerbs() { // the device, or the machine, may be an emulated one
		return 5 * time.Minute
	}
	return testseed.Patience()
}

// await waits for a line of standard error.
func (p *program) await(t *testing.T, what string) {
	t.Helper()
	limit := time.After(patience())
	for !p.said(what) {
		select {
		case <-p.news:
		case <-p.over:
			if !p.said(what) {
				t.Fatalf("ended without saying %q: %q", what, p.stderr)
			}
		case <-limit:
			t.Fatalf("did not say %q: %q", what, p.stderr)
		}
	}
}

// children are the processes it has started.
func (p *program) children(t *testing.T) (pids []int) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(after); len(f) > 1 && f[1] == strconv.Itoa(p.Process.Pid) {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// end waits for it and returns its exit status.
func (p *program) end(t *testing.T) int {
	t.Helper()
	timer := time.AfterFunc(patience(), func() {
		_ = p.Process.Signal(syscall.SIGQUIT)
		t.Errorf("did not end within %v", patience())
	})
	defer timer.Stop()
	<-p.over
	err := p.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

// gone checks that processes, sockets and files are.
func gone(t *testing.T, p *program, pids []int) {
	t.Helper()
	for deadline := time.Now().Add(testseed.Patience()); ; time.Sleep(5 * time.Millisecond) {
		var left []string
		for _, pid := range pids {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			_, after, _ := strings.Cut(string(b), ") ")
			if err == nil && !strings.HasPrefix(after, "Z") { // a zombie waits for an init that may not be there
				left = append(left, fmt.Sprintf("process %d", pid))
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left)
		}
	}
	if files, _ := os.ReadDir(p.temp); len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
}

func longRun(extra ...string) []string {
	return append([]string{
		"tpcc", "run", "--warehouses", "2", "--servers", "2", "--items", "1000", "--customers", "60",
		"--clients", "4", "--duration", "1m", "--warmup", "0s",
	}, extra...)
}

// measured reports whether a run had begun to measure.
func measured(r *bench.Report) bool { return r.Throughput > 0 }

// strike starts a run, does something to it some time after it has loaded, and returns it
// when it has ended, with its report. If the run had not got as far as it should have, it
// is done once more, and later: how fast the machine is decides when that is.
func strike(t *testing.T, args []string, do func(p *program, servers []int), reached func(*bench.Report) bool) (p *program, r *bench.Report, raw []byte) {
	t.Helper()
	for pause := 400 * time.Millisecond; ; pause *= 2 {
		path := filepath.Join(t.TempDir(), "r.json")
		p = launch(t, append(args, "--json", path)...)
		p.await(t, "loaded 2 warehouses")
		time.Sleep(pause)
		children := p.children(t)
		if len(children) != 2 {
			t.Fatalf("children %v, want 2", children)
		}
		do(p, children)
		p.code = p.end(t)
		raw, _ = os.ReadFile(path)
		r = &bench.Report{}
		err := json.Unmarshal(raw, r)
		if err == nil && reached(r) || pause > 10*time.Second { // the run lasts a minute
			if err != nil || !reached(r) {
				t.Errorf("%v after it had loaded: JSON %v: %s", pause, err, raw)
			}
			return p, r, raw
		}
		t.Logf("%v after it had loaded was too soon", pause)
	}
}

func TestInterruptReportsAndLeavesNothing(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		var children []int
		p, r, raw := strike(t, longRun(), func(p *program, servers []int) {
			children = servers
			_ = p.Process.Signal(sig)
		}, measured)
		if p.code != cli.ExitInterrupted {
			t.Errorf("%v: exit status %d, want %d: %q", sig, p.code, cli.ExitInterrupted, p.stderr)
		}
		out := p.stdout.String()
		if !strings.Contains(out, "ORDER_STATUS") || !strings.Contains(out, "not checked") || !p.said("interrupted") {
			t.Errorf("%v: report %q, stderr %q", sig, out, p.stderr)
		}
		if !r.Interrupted || r.ServerCPUS == 0 {
			t.Errorf("%v: JSON %s", sig, raw)
		}
		gone(t, p, children)
	}
}

// What ran in the warm-up is printed as that, and nothing claims to be measured.
func TestInterruptInWarmupReportsTheWarmup(t *testing.T) {
	series := filepath.Join(t.TempDir(), "s.csv")
	p, r, raw := strike(t, longRun("--warmup", "1m", "--mix", "full", "--series", series), func(p *program, _ []int) {
		_ = p.Process.Signal(os.Interrupt)
	}, func(r *bench.Report) bool { return r.Types["PAYMENT"].Committed > 0 })
	if p.code != cli.ExitInterrupted {
		t.Errorf("exit status %d, want %d: %q", p.code, cli.ExitInterrupted, p.stderr)
	}
	if out := p.stdout.String(); !strings.Contains(out, "STOCK_LEVEL") || !strings.Contains(out, "of the warm-up, nothing measured") {
		t.Errorf("report %q", out)
	}
	if !r.Interrupted || !r.WarmupOnly || r.ServerCPUS != 0 {
		t.Errorf("JSON %s", raw)
	}
	if _, err := os.Stat(series); err == nil {
		t.Error("an empty series was left")
	}
}

// A comparison that is interrupted reports the runs that ended before.
func TestInterruptedComparisonReports(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.json")
	p := launch(t, "tpcc", "compare", "--fabric", "inproc", "--warehouses", "1", "--servers", "1", "--items", "1000", "--customers", "100",
		"--clients", "2", "--warmup", "10ms", "--duration", "100ms", "--repeat", "1000", "--mix", "order-status=100", "--json", path)
	p.await(t, "2 of 1000")
	_ = p.Process.Signal(os.Interrupt)
	if code := p.end(t); code != cli.ExitInterrupted || !p.said("interrupted") {
		t.Errorf("exit status %d, stderr %q", code, p.stderr)
	}
	if out := p.stdout.String(); !strings.Contains(out, "drtmx ÷ rpc") {
		t.Errorf("report %q", out)
	}
	var c comparison
	b, _ := os.ReadFile(path)
	if err := json.Unmarshal(b, &c); err != nil || !c.Interrupted || len(c.Runs) < 3 || len(c.Ratios) != 2 {
		t.Errorf("JSON %v: %s", err, b)
	}
}

func TestInterruptWhileLoading(t *testing.T) {
	// Soon enough, so that not all is loaded before this test has interrupted.
	for after := 300 * time.Millisecond; !interruptLoading(t, after); after /= 2 {
		if after < time.Millisecond {
			t.Fatal("everything is loaded at once")
		}
	}
}

// interruptLoading interrupts a run some time after its data servers have started. It
// reports false if everything was loaded before.
func interruptLoading(t *testing.T, after time.Duration) bool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.json")
	p := launch(t, "tpcc", "run", "--json", path)
	var children []int
	for end := time.Now().Add(patience()); len(children) < 4; time.Sleep(time.Millisecond) {
		if children = p.children(t); time.Now().After(end) {
			t.Fatalf("children %v, want 4", children)
		}
	}
	time.Sleep(after)
	_ = p.Process.Signal(os.Interrupt)
	code := p.end(t)
	if p.said("loaded") {
		return false
	}
	if code != cli.ExitInterrupted || !p.said("interrupted before anything was measured") {
		t.Errorf("exit status %d, stderr %q", code, p.stderr)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an empty report was left")
	}
	gone(t, p, children)
	return true
}

func TestSecondInterruptKills(t *testing.T) {
	p := launch(t, longRun()...)
	p.await(t, "loaded 2 warehouses")
	children := p.children(t)
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // an orderly end has to wait for them
	}
	for over := false; !over; { // two signals at the same time are one
		_ = p.Process.Signal(os.Interrupt)
		select {
		case <-p.over:
			over = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	if code := p.end(t); code != cli.ExitInterrupted {
		t.Errorf("exit status %d, want %d", code, cli.ExitInterrupted)
	}
	// A run that had not begun is reported before its servers are asked to stop.
	if p.said("did not stop") {
		t.Errorf("it waited for its servers: %q, %q", p.stdout.String(), p.stderr)
	}
	gone(t, p, children)
}

func TestKilledParentTakesItsServersAlong(t *testing.T) {
	p := launch(t, longRun()...)
	p.await(t, "loaded 2 warehouses")
	children := p.children(t)
	if len(children) != 2 {
		t.Fatalf("children %v, want 2", children)
	}
	_ = p.Process.Kill()
	<-p.over
	_ = p.Wait()
	gone(t, p, children)
}

func TestKilledServerEndsTheRunWithAPartialReport(t *testing.T) { killedServer(t, fabricShm) }

func killedServer(t *testing.T, fabric string) {
	t.Helper()
	var children []int
	p, r, raw := strike(t, longRun("--fabric", fabric), func(_ *program, servers []int) {
		children = servers
		_ = syscall.Kill(servers[1], syscall.SIGKILL)
	}, measured)
	if p.code != cli.ExitFailed {
		t.Errorf("exit status %d, want %d", p.code, cli.ExitFailed)
	}
	want := fmt.Sprintf("(pid %d) was ended by signal \"killed\"", children[1])
	if lines := p.stderr[1:]; len(lines) != 1 || !strings.Contains(lines[0], want) {
		t.Errorf("stderr %q, want one line with %q", lines, want)
	}
	if out := p.stdout.String(); !strings.Contains(out, "ORDER_STATUS") || !strings.Contains(out, "not checked") {
		t.Errorf("report %q", out)
	}
	if !strings.Contains(r.Error, want) {
		t.Errorf("JSON %s", raw)
	}
	gone(t, p, children)
}

func TestServeEndsWithItsSignalsAndServers(t *testing.T) {
	dir, err := os.MkdirTemp("", "drtmx-test-") // t.TempDir's name may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	run := filepath.Join(dir, "run")
	for _, c := range []struct {
		how  string
		do   func(p *program, children []int)
		code int
		left bool
	}{
		{"SIGTERM", func(p *program, _ []int) { _ = p.Process.Signal(syscall.SIGTERM) }, 0, false},
		{"a dead server", func(_ *program, c []int) { _ = syscall.Kill(c[0], syscall.SIGKILL) }, cli.ExitFailed, false},
		{"kill -9", func(p *program, _ []int) { _ = p.Process.Kill() }, -1, true},
		{"SIGINT, after a stale directory", func(p *program, _ []int) { _ = p.Process.Signal(os.Interrupt) }, 0, true},
	} {
		p := launch(t, "serve", "--runtime-dir", run, "--servers", "2")
		p.await(t, "ready in")
		children := p.children(t)
		c.do(p, children)
		if code := p.end(t); code != c.code {
			t.Errorf("%s: exit status %d, want %d: %q", c.how, code, c.code, p.stderr)
		}
		gone(t, p, children)
		if _, err := os.Stat(run); (err == nil) != c.left {
			t.Errorf("%s: runtime directory: %v", c.how, err)
		}
	}
}
