package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/placement"
	"drtmx/rdma/multi"
	"drtmx/tables"
	"drtmx/txn"
)

// memberMain is a process with one real data server over tcp: its number, its
// directory and the hosts of all are its arguments.
func memberMain(args []string) {
	ctx := context.Background()
	err := func() error {
		index, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		f, err := NewFabrics(multi.Options{})
		if err != nil {
			return err
		}
		catalog, err := newTrialCatalog()
		if err != nil {
			return err
		}
		hosts := strings.Split(args[2], ",")
		_, err = Join(ctx, JoinOptions{
			Size: Size{Servers: len(hosts)}, Index: placement.Server(index), Addrs: MemberAddrs(len(hosts), []string{multi.TCP}, "", hosts),
			Dir: args[1], Provider: f, Workload: Workload{Catalog: catalog}, MemoryBytes: 256 << 20,
		})
		return err
	}()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

// startMember starts such a process and waits until it serves.
func startMember(t *testing.T, index int, dir string, hosts []string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "member", strconv.Itoa(index), dir, strings.Join(hosts, ","))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil || string(line[:n]) != "ready\n" {
		t.Fatalf("data server %d: %q, %v", index, line[:n], err)
	}
	return cmd
}

// outcomes counts how operations ended.
type outcomes struct{ fine, away, restarted atomic.Int64 }

// TestKilledServer kills a data server in the middle of a load and starts it
// again: while it is away, and ever after, those that knew it get typed errors
// for its data, and never the answer of the empty memory in its place; the data
// of the other server is there all along. A database that is opened afterwards
// is refused: it would mix the empty memory with what is left.
func TestKilledServer(t *testing.T) {
	ctx, dir, hosts := patience(t), trialDir(t), freeHosts(t, 2)
	startMember(t, 0, dir, hosts)
	victim := startMember(t, 1, dir, hosts)
	a := &Address{Hosts: hosts}
	db := openAt(ctx, t, a)
	defer db.Close()
	const keys = 64
	for k := range uint64(keys) {
		if err := put(ctx, db, k); err != nil {
			t.Fatal(err)
		}
	}
	var seen outcomes
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			for k := uint64(w); ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := seen.judge(touch(ctx, db, k%keys, w%2 == 0)); err != nil {
					t.Errorf("key %d: %v", k%keys, err)
					return
				}
			}
		})
	}
	more := func(n *atomic.Int64, what string) {
		t.Helper()
		was := n.Load()
		eventually(t, what, func() bool { return n.Load() > was+10 })
	}
	more(&seen.fine, "transactions")
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait()
	more(&seen.away, "errors while it is away")
	more(&seen.fine, "transactions at the other server")
	startMember(t, 1, dir, hosts)
	more(&seen.restarted, "errors after its restart")
	more(&seen.fine, "transactions at the other server")
	close(stop)
	wg.Wait()
	t.Logf("%d fine, %d unavailable, %d restarted", seen.fine.Load(), seen.away.Load(), seen.restarted.Load())

	cl, err := Connect(ctx, ConnectOptions{Address: a})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if again, err := txn.Open(ctx, cl.Config()); !errors.Is(err, txn.ErrRestarted) {
		if again != nil {
			again.Close()
		}
		t.Errorf("a database opened over the restarted server: %v, want %v", err, txn.ErrRestarted)
	}
}

// judge is an error for an outcome that a server's end cannot excuse.
func (o *outcomes) judge(err error) error {
	switch {
	case err == nil:
		o.fine.Add(1)
	case errors.Is(err, txn.ErrRestarted):
		o.restarted.Add(1)
		if !errors.Is(err, txn.ErrUnavailable) {
			return fmt.Errorf("restarted, but not unavailable: %w", err)
		}
	case errors.Is(err, txn.ErrUnavailable), errors.Is(err, txn.ErrOutcomeUnknown):
		o.away.Add(1)
		time.Sleep(time.Millisecond)
	default:
		return err
	}
	return nil
}

// touch reads a row that is there, or writes it, too.
func touch(ctx context.Context, db *txn.DB, key uint64, write bool) error {
	tab, err := db.Table("t")
	if err != nil {
		return err
	}
	if !write {
		return db.View(ctx, func(x *txn.Txn) error {
			_, err := x.Get(tab, tables.Num(key))
			return err
		})
	}
	return db.Update(ctx, func(x *txn.Txn) error {
		row, err := x.Get(tab, tables.Num(key))
		if err != nil {
			return err
		}
		return x.Update(tab, tables.Num(key), row)
	})
}

func openAt(ctx context.Context, t *testing.T, a *Address) *txn.DB {
	t.Helper()
	cl, err := Connect(ctx, ConnectOptions{Address: a})
	if err != nil {
		t.Fatal(err)
	}
	db, err := txn.Open(ctx, cl.Config())
	if err != nil {
		t.Fatal(err)
	}
	return db
}
