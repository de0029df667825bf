package main

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
	return 30 * time.Second
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
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
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

func TestInterruptReportsAndLeavesNothing(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		path := filepath.Join(t.TempDir(), "r.json")
		p := launch(t, longRun("--json", path)...)
		p.await(t, "loaded 2 warehouses")
		time.Sleep(400 * time.Millisecond)
		children := p.children(t)
		if len(children) != 2 {
			t.Fatalf("children %v, want 2", children)
		}
		_ = p.Process.Signal(sig)
		if code := p.end(t); code != cli.ExitInterrupted {
			t.Errorf("%v: exit status %d, want %d: %q", sig, code, cli.ExitInterrupted, p.stderr)
		}
		out := p.stdout.String()
		if !strings.Contains(out, "ORDER_STATUS") || !strings.Contains(out, "not checked") || !p.said("interrupted") {
			t.Errorf("%v: report %q, stderr %q", sig, out, p.stderr)
		}
		var r bench.Report
		b, _ := os.ReadFile(path)
		if err := json.Unmarshal(b, &r); err != nil || !r.Interrupted || r.Throughput == 0 || r.ServerCPUS == 0 {
			t.Errorf("%v: JSON %v: %s", sig, err, b)
		}
		gone(t, p, children)
	}
}

// What ran in the warm-up is printed as that, and nothing claims to be measured.
func TestInterruptInWarmupReportsTheWarmup(t *testing.T) {
	path, series := filepath.Join(t.TempDir(), "r.json"), filepath.Join(t.TempDir(), "s.csv")
	p := launch(t, longRun("--warmup", "1m", "--mix", "full", "--json", path, "--series", series)...)
	p.await(t, "loaded 2 warehouses")
	time.Sleep(400 * time.Millisecond)
	_ = p.Process.Signal(os.Interrupt)
	if code := p.end(t); code != cli.ExitInterrupted {
		t.Errorf("exit status %d, want %d: %q", code, cli.ExitInterrupted, p.stderr)
	}
	if out := p.stdout.String(); !strings.Contains(out, "STOCK_LEVEL") || !strings.Contains(out, "of the warm-up, nothing measured") {
		t.Errorf("report %q", out)
	}
	var r bench.Report
	b, _ := os.ReadFile(path)
	if err := json.Unmarshal(b, &r); err != nil || !r.Interrupted || !r.WarmupOnly || r.Types["PAYMENT"].Committed == 0 || r.ServerCPUS != 0 {
		t.Errorf("JSON %v: %s", err, b)
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
	path := filepath.Join(t.TempDir(), "r.json")
	p := launch(t, "tpcc", "run", "--json", path)
	var children []int
	for len(children) < 4 {
		children = p.children(t)
		time.Sleep(time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	_ = p.Process.Signal(os.Interrupt)
	if code := p.end(t); code != cli.ExitInterrupted || !p.said("interrupted before anything was measured") {
		t.Errorf("exit status %d, stderr %q", code, p.stderr)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an empty report was left")
	}
	gone(t, p, children)
}

func TestSecondInterruptKills(t *testing.T) {
	p := launch(t, longRun()...)
	p.await(t, "loaded 2 warehouses")
	children := p.children(t)
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // an orderly end has to wait for them
	}
	_ = p.Process.Signal(os.Interrupt)
	time.Sleep(100 * time.Millisecond)
	start := time.Now()
	_ = p.Process.Signal(os.Interrupt)
	if code := p.end(t); code != cli.ExitInterrupted {
		t.Errorf("exit status %d, want %d", code, cli.ExitInterrupted)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
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
	path := filepath.Join(t.TempDir(), "r.json")
	p := launch(t, longRun("--fabric", fabric, "--json", path)...)
	p.await(t, "loaded 2 warehouses")
	time.Sleep(patience() / 75)
	children := p.children(t)
	if len(children) != 2 {
		t.Fatalf("children %v, want 2", children)
	}
	_ = syscall.Kill(children[1], syscall.SIGKILL)
	if code := p.end(t); code != cli.ExitFailed {
		t.Errorf("exit status %d, want %d", code, cli.ExitFailed)
	}
	want := fmt.Sprintf("(pid %d) was ended by signal \"killed\"", children[1])
	if lines := p.stderr[1:]; len(lines) != 1 || !strings.Contains(lines[0], want) {
		t.Errorf("stderr %q, want one line with %q", lines, want)
	}
	if out := p.stdout.String(); !strings.Contains(out, "ORDER_STATUS") || !strings.Contains(out, "not checked") {
		t.Errorf("report %q", out)
	}
	var r bench.Report
	b, _ := os.ReadFile(path)
	if err := json.Unmarshal(b, &r); err != nil || !strings.Contains(r.Error, want) || r.Throughput == 0 {
		t.Errorf("JSON %v: %s", err, b)
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
		p := launch(t, "serve", "--data-dir", run, "--servers", "2")
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
