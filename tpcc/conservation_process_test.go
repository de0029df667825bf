package tpcc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/shm"
	"drtmx/server"
	"drtmx/txn"
)

// Clients as processes of their own, over shared memory, some of which are
// killed. The test binary is started again with a role in the environment.

const roleEnv = "DRTMX_TPCC_TEST_ROLE"

// role is what a client process is to do.
type role struct {
	Seed, Number uint64
	Addrs        []string
	Ledger       string // path
	Duration     time.Duration
}

// entry is a line of a client's ledger, written in one piece before a
// transaction begins and when it has ended, so that whatever moment the
// process dies at, the parent knows what may have happened.
type entry struct {
	Begin bool
	Entry LedgerEntry
}

// TestRole is the body of the processes; in the test itself it does nothing.
func TestRole(t *testing.T) {
	env := os.Getenv(roleEnv)
	if env == "" {
		t.Skip("this is what child processes run")
	}
	var r role
	err := json.Unmarshal([]byte(env), &r)
	if err == nil {
		err = r.work()
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("done")
	os.Exit(0)
}

func (r *role) work() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := shm.New(shm.Options{})
	if err != nil {
		return err
	}
	db, err := txn.Open(ctx, txn.Config{Servers: r.Addrs, Dial: p.Dial})
	if err != nil {
		return err
	}
	defer db.Close()
	info, err := ReadLoadInfo(ctx, db)
	if err != nil {
		return err
	}
	s, err := NewSchema(db.Catalog())
	if err != nil {
		return err
	}
	ledger, err := os.Create(r.Ledger)
	if err != nil {
		return err
	}
	defer ledger.Close()
	write := func(e entry) {
		b, err := json.Marshal(e)
		if err == nil {
			_, err = ledger.Write(append(b, '\n'))
		}
		if err != nil {
			panic(err)
		}
	}
	c := NewLedgerClient(r.Seed, r.Number, info)
	c.Begin = func(d LedgerEntry) { write(entry{true, d}) }
	c.End = func(d LedgerEntry) { write(entry{false, d}) }
	sess, err := db.NewSession(ctx)
	if err != nil {
		return err
	}
	defer sess.Close()
	term := NewTerminal(db, sess, s, modes[r.Number%uint64(len(modes))])
	fmt.Println("ready")
	for end := time.Now().Add(r.Duration); time.Now().Before(end); {
		if err := c.Run(ctx, term); err != nil {
			return err
		}
	}
	return nil
}

// clientProcess is a client and its ledger.
type clientProcess struct {
	role
	cmd  *exec.Cmd
	out  *bufio.Scanner
	dead bool
}

func hire(t *testing.T, r role) *clientProcess {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	c := &clientProcess{role: r, cmd: exec.Command(os.Args[0], "-test.run=^TestRole$")}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+string(b))
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	t.Cleanup(c.kill)
	return c
}

func (c *clientProcess) await(want string) error {
	for c.out.Scan() {
		if line := c.out.Text(); line == want {
			return nil
		} else if strings.HasPrefix(line, "error: ") {
			return fmt.Errorf("client %d: %s", c.Number, line)
		}
	}
	return fmt.Errorf("client %d ended before it said %q: %w", c.Number, want, errors.Join(c.out.Err(), io.ErrUnexpectedEOF))
}

func (c *clientProcess) kill() {
	if !c.dead {
		c.dead = true
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// entries reads the ledger. What began and has no end, or a delivery's
// districts that have none, is unfinished.
func (c *clientProcess) entries(t *testing.T) (all []LedgerEntry) {
	t.Helper()
	b, err := os.ReadFile(c.Ledger)
	if err != nil {
		t.Fatal(err)
	}
	var open *LedgerEntry
	for line := range bytes.Lines(b) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			if c.dead {
				break // killed within a write
			}
			t.Fatalf("%s: %v", line, err)
		}
		if e.Begin {
			if open != nil && open.Type != Delivery {
				t.Errorf("%+v never ended", *open)
			}
			open = &e.Entry
			continue
		}
		if all = append(all, e.Entry); e.Entry.Type == OrderStatus {
			continue
		}
		if open.From = e.Entry.To + 1; open.Type != Delivery || open.From > Districts {
			open = nil
		}
	}
	if open != nil && c.dead {
		all = append(all, *open)
	}
	return all
}

// TestConservationOfProcesses: clients are processes, and some of them are
// killed in the middle of what they do. What they announced is in the
// database once or not at all, and everything adds up.
func TestConservationOfProcesses(t *testing.T) {
	if err := shm.Available(); errors.Is(err, rdma.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if testseed.Race {
		t.Skip("regions are not shared memory under the race detector")
	}
	const clients, kills = 3, 4
	seed, duration := testseed.Of(t), simTime(t, 1500*time.Millisecond)
	e, addrs, dir := newShared(t, 2, 2)
	var all []*clientProcess
	start := func() {
		n := len(all)
		all = append(all, hire(t, role{seed, uint64(n), addrs, filepath.Join(dir, fmt.Sprintf("ledger-%d", n)), duration}))
	}
	for range clients {
		start()
	}
	rnd := rng.New(seed).Split("kills")
	for i := range kills {
		if err := all[i].await("ready"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rnd.Uint64n(uint64(duration / kills))))
		all[i].kill()
		start()
	}
	for _, c := range all {
		if !c.dead {
			if err := c.await("done"); err != nil {
				t.Error(err)
			}
		}
	}
	e.settled(t)
	var entries []LedgerEntry
	for _, c := range all {
		entries = append(entries, c.entries(t)...)
	}
	counts := verify(t, e, entries, func(id txn.ID) (bool, error) { return false, fmt.Errorf("no outcome is lost without a fault: %v", id) })
	e.mustHold(t)
	t.Logf("%v", counts)
	if counts["PAYMENT committed"] == 0 || counts["NEW_ORDER committed"] == 0 || counts["DELIVERY committed"] == 0 {
		t.Errorf("too little was done: %v", counts)
	}
}

// newShared is newEngine over shared memory, for clients in other processes.
func newShared(t *testing.T, servers int, warehouses int64) (e *engine, addrs []string, dir string) {
	t.Helper()
	// Socket paths are short; the usual directories of tests are not.
	dir, err := os.MkdirTemp("", "drtmx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p, err := shm.New(shm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e = &engine{Cluster: &server.Cluster{}}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range servers {
		addrs = append(addrs, filepath.Join(dir, fmt.Sprintf("s%d", i)))
	}
	for i := range servers {
		s, err := server.New(server.Config{
			Index: i, Addrs: addrs, Catalog: Catalog(), Procedures: Procedures(), Provider: p, MemoryBytes: 256 << 20,
		})
		if err == nil {
			e.Servers = append(e.Servers, s)
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if e.DB, err = txn.Open(t.Context(), txn.Config{Servers: addrs, Dial: p.Dial}); err != nil {
		t.Fatal(err)
	}
	e.populate(t, warehouses)
	return e, addrs, dir
}
