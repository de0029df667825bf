//go:build verbs

package verbs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// roleEnv makes the test binary a process of a test.
const roleEnv = "DRTMX_VERBS_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// play serves, or calls at the address given, until standard input ends.
func play(role string) error {
	p, err := New(Options{Device: os.Getenv(deviceEnv)})
	if err != nil {
		return err
	}
	if addr, ok := strings.CutPrefix(role, "client "); ok {
		c, err := p.Dial(context.Background(), addr)
		if err != nil {
			return err
		}
		if _, err := rdma.Call(context.Background(), c, []byte("hello"), nil); err != nil {
			return err
		}
		fmt.Println("called")
		_, err = io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, c.Close())
	}
	e, err := p.Listen("", rdma.ListenOptions{})
	if err != nil {
		return err
	}
	m, err := mappedRegion(mem.Options{SegmentBytes: testSegment, MaxBytes: testSegment})
	if err != nil {
		return err
	}
	rdmatest.FillPattern(m, 0, m.Size())
	if _, err := e.Register(m, rdma.AccessRead); err != nil {
		return err
	}
	err = e.Serve(func(q *rdma.Request) {
		if len(q.Body) > 0 {
			_ = q.Reply(q.Body)
		}
	})
	if err != nil {
		return err
	}
	fmt.Println(e.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, e.Close())
}

// start runs a process and returns the line it prints when it is ready.
func start(t *testing.T, role string) (*exec.Cmd, io.Closer, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("process %q: %v", role, err)
	}
	return cmd, in, strings.TrimSpace(line)
}

// A server's process that is killed is noticed in the middle of a call, of a
// batch, and at rest.
func TestKilledServer(t *testing.T) {
	p := newProvider(t, Options{})
	cmd, _, addr := start(t, "server")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var conns [3]rdma.Conn
	for i := range conns {
		c, err := p.Dial(ctx, addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	results := make(chan error, 2)
	if err := conns[0].StartCall(ctx, nil); err != nil { // never answered
		t.Fatal(err)
	}
	go func() {
		_, err := conns[0].FinishCall(ctx, nil)
		results <- err
	}()
	var b rdma.Batch
	for i := range uint64(64) {
		b.Read(1, i*512, make([]uint64, 64))
	}
	if err := rdma.Do(ctx, conns[1], &b); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if err := rdma.Do(ctx, conns[1], &b); err != nil {
				results <- err
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-results; !errors.Is(err, rdma.ErrPeerDown) {
			t.Errorf("%v, want ErrPeerDown", err)
		}
	}
	if _, err := rdma.Call(ctx, conns[2], []byte("x"), nil); !errors.Is(err, rdma.ErrPeerDown) {
		t.Errorf("%v, want ErrPeerDown", err)
	}
	if c, err := p.Dial(ctx, addr); !errors.Is(err, rdma.ErrAddress) {
		t.Errorf("dial to a dead server: %v, %v", c, err)
	}
}

// A client's process that is killed is reported gone, and its memory is
// withdrawn.
func TestKilledClient(t *testing.T) {
	p := newProvider(t, Options{})
	var gone atomic.Int64
	e, err := p.Listen("", rdma.ListenOptions{OnDisconnect: func(rdma.PeerID) { gone.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Serve(rdmatest.Echo); err != nil {
		t.Fatal(err)
	}
	cmd, _, _ := start(t, "client "+e.Addr())
	_, bye, _ := start(t, "client "+e.Addr())
	if gone.Load() != 0 {
		t.Error("a living client is reported gone")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	bye.Close()
	for deadline := time.Now().Add(2 * time.Minute); gone.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 2 clients are reported gone", gone.Load())
		}
	}
	se := e.(*endpoint)
	se.mu.Lock()
	defer se.mu.Unlock()
	if n := len(se.mu.conns) + len(se.mu.domains); n != 0 {
		t.Errorf("%d connections and domains are left", n)
	}
}
