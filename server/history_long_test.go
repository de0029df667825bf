package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"drtmx/internal/history"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/txn"
)

// TestLongHistory produces one history of a great many transactions and checks
// it as a whole. It runs if DRTMX_LONG gives their number, in thousands:
//
//	DRTMX_LONG=1000 go test ./server -run TestLongHistory -v -timeout 30m
func TestLongHistory(t *testing.T) {
	thousands, err := strconv.Atoi(os.Getenv("DRTMX_LONG"))
	if err != nil || thousands < 1 {
		t.Skip("set DRTMX_LONG to the number of transactions, in thousands")
	}
	seed := testseed.Of(t)
	for _, sc := range []struct {
		name   string
		faults inproc.Faults
	}{
		{"no faults", inproc.Faults{}},
		{"words in any order", inproc.Faults{Scramble: 0.5, Pause: 0.02, Defer: 0.1, Reorder: 0.5, Duplicate: 0.05}},
	} {
		t.Run(sc.name, func(t *testing.T) {
			l := load{
				Seed: seed, Room: 24, Keys: 40, OpsPerTxn: 4, Clients: 8, Reads: 0.35, Scans: 0.08, Deletes: 0.01,
				Views: 0.35, Calls: 0.25, Looks: 0.05, RollBacks: 0.02, Hows: 1<<howBits - 1,
			}
			l.TxnsPerClient = thousands * 1000 / l.Clients
			x := startCluster(t, newLists(&l), 3, inproc.Options{Faults: sc.faults, Seed: seed}, txn.Config{})
			defer x.Close()
			start := time.Now()
			out, err := x.run(t, &l)
			if err != nil {
				t.Fatal(err)
			}
			ran := time.Since(start)
			path := filepath.Join(t.TempDir(), "history")
			if err := out.h.Save(path); err != nil {
				t.Fatal(err)
			}
			fi, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			loaded, err := history.Load(path) // as another process would check it
			if err != nil {
				t.Fatal(err)
			}
			runtime.GC()
			start = time.Now()
			rep := check(t, t.Name(), loaded)
			checked := time.Since(start)
			t.Logf("%d transactions %v in %v (%.0f a second), %.1f MB", out.h.Len(), out.counts, ran.Round(time.Millisecond),
				float64(out.h.Len())/ran.Seconds(), float64(fi.Size())/1e6)
			t.Logf("checked in %v (%.0f a second): %v", checked.Round(time.Millisecond), float64(out.h.Len())/checked.Seconds(), rep)
			if rep.Txns < thousands*1000 {
				t.Error(fmt.Errorf("%d transactions in the history, want %d", rep.Txns, thousands*1000))
			}
		})
	}
}
