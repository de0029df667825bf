package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/txn/stats"
)

func TestStatsCountWhatRan(t *testing.T) {
	cl, acct, _ := startBank(t, 2)
	ctx := t.Context()
	putAccounts(t, cl.DB, acct, 64, 100)
	before, err := cl.DB.ServerStats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sum := func(st []stats.Server, f func(*stats.Server) uint64) (n uint64) {
		for i := range st {
			n += f(&st[i])
		}
		return n
	}
	const calls = 20
	for i := range uint64(calls) {
		// Accounts of one server, so that the procedure stays in its partition.
		if _, err := cl.DB.Call(ctx, HomeOf(cl.DB, acct, tables.Num(2*i)), "transfer", transferArgs(2*i, 2*i+2, 1)); err != nil {
			t.Fatal(err)
		}
	}
	after, err := cl.DB.ServerStats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	more := func(f func(*stats.Server) uint64) uint64 { return sum(after, f) - sum(before, f) }
	if n := more(func(s *stats.Server) uint64 { return s.Calls }); n != calls {
		t.Errorf("%d more calls, want %d", n, calls)
	}
	// A transaction of two partitions commits in both.
	commits := more(func(s *stats.Server) uint64 { return s.Commits })
	if distributed := more(func(s *stats.Server) uint64 { return s.Distributed }); commits != calls+distributed {
		t.Errorf("%d more commits, want %d and %d of distributed transactions", commits, calls, distributed)
	}
	if handed := more(func(s *stats.Server) uint64 { return s.Handovers }); commits != calls+handed {
		t.Errorf("%d more commits, want %d and %d of transactions handed over", commits, calls, handed)
	}
	rows := sum(after, func(s *stats.Server) (n uint64) {
		for _, ix := range s.Indexes {
			if ix.Name == "account" {
				n += ix.Rows
			}
		}
		return n
	})
	if rows != 64 {
		t.Errorf("%d rows of account, want 64", rows)
	}
	for i := range after {
		st, direct := &after[i], cl.Servers[i].Stats()
		p := st.Partitions[0]
		if st.Server != i || st.Address != cl.Servers[i].Addr() || st.Fabric != "inproc" || st.Incarnation == 0 || st.Epoch != 1 ||
			st.StartUnix < float64(time.Now().Add(-time.Hour).Unix()) || st.Stopping || st.Outcomes == 0 || st.Verbs.RPCs == 0 ||
			st.Greeted == 0 || st.Process.Goroutines == 0 || st.Process.HeapBytes == 0 || st.Process.ResidentBytes == 0 {
			t.Errorf("server %d: %+v", i, st)
		}
		if p.Partition != i || p.Loaded || p.Fenced || p.UsedBytes == 0 || p.MappedBytes < p.UsedBytes || p.LimitBytes != defaultMemoryBytes {
			t.Errorf("partition: %+v", p)
		}
		if direct.Commits != st.Commits || len(direct.Indexes) != len(st.Indexes) {
			t.Errorf("Stats differ from what is asked for by RPC: %+v and %+v", direct, st)
		}
	}
}

// A server may hold more partitions than one answer has room for.
func TestStatsOfManyPartitions(t *testing.T) {
	const partitions = 500
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: bank(t), Partitions: partitions, Network: net, MemoryBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	// Trained to the end, so that no partition grows between two pages of the snapshot.
	if err := cl.DB.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	st, err := txn.AskStats(t.Context(), net.Dial, cl.Servers[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	byDB, err := cl.DB.ServerStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range []*stats.Server{st, &byDB[0]} {
		if len(st.Partitions) != partitions || len(st.Indexes) != 3*partitions || st.Next != 0 {
			t.Fatalf("%d partitions, %d indexes, next %d", len(st.Partitions), len(st.Indexes), st.Next)
		}
		used := uint64(0)
		for i, p := range st.Partitions {
			used += p.UsedBytes
			if p.Partition != i || st.Indexes[3*i].Partition != i {
				t.Fatalf("partition %d is %+v", i, p)
			}
		}
		if used != st.RegionBytes {
			t.Errorf("partitions use %d bytes, the server says %d", used, st.RegionBytes)
		}
	}
}

func TestStatsOfNobody(t *testing.T) {
	net := inproc.New(inproc.Options{})
	if _, err := txn.AskStats(t.Context(), net.Dial, "nobody"); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// Answers that go round in circles, or are none, are errors.
func TestBadStatsAnswers(t *testing.T) {
	for _, text := range []string{"", "\x0btext", "\x00", "\x00{", "\x00[]", `{"next":3}`, "\x00" + `{"next":-1}`, "\x00" + `{"next":5}`, "\x00" + `{"next":99999}`} {
		st := wire.ServerStats{Next: 5}
		if err := wire.DecodeStats([]byte(text), &st); !errors.Is(err, wire.ErrMessage) {
			t.Errorf("%q: %v, want ErrMessage", text, err)
		}
	}
}

// Statistics are taken beside transactions and training, and never go back.
func TestStatsBesideTransactions(t *testing.T) {
	cl, acct, _ := startBank(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	putAccounts(t, cl.DB, acct, 64, 1000)
	var wg sync.WaitGroup
	for w := range uint64(2) {
		wg.Go(func() {
			for i := w; ctx.Err() == nil; i++ {
				err := cl.DB.Update(ctx, func(x *txn.Txn) error { return transfer(x, acct, i%64, (i+7)%64, 1) })
				if err != nil && ctx.Err() == nil && !errors.Is(err, errPoor) {
					t.Error(err)
					return
				}
			}
		})
	}
	var last stats.Server
	for range 200 {
		st := cl.Servers[0].Stats()
		if st.Commits < last.Commits || st.Distributed < last.Distributed || st.Verbs.RPCs < last.Verbs.RPCs || st.Prepared < 0 {
			t.Errorf("after %+v came %+v", last, st)
		}
		last = st
	}
	cancel()
	wg.Wait()
	if last.Commits == 0 {
		t.Error("nothing committed")
	}
}

// The executor must be free while statistics are put together: only counters
// are copied under its lock.
func TestStatsHoldNoExecutor(t *testing.T) {
	cl, _, _ := startBank(t, 1)
	p := cl.Servers[0].parts.of[0]
	p.mu.Lock()
	done := make(chan int)
	go func() { done <- len(p.indexStats()) }()
	select {
	case n := <-done:
		if n != 3 {
			t.Errorf("%d indexes", n)
		}
	case <-time.After(testseed.Patience()):
		t.Error("statistics of indexes wait for the executor")
	}
	p.mu.Unlock()
}

// logLines collects a log.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logLines) records(t *testing.T) (out []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.buf.Bytes()) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

func (l *logLines) has(t *testing.T, message string) bool {
	t.Helper()
	for _, r := range l.records(t) {
		if r["msg"] == message {
			return true
		}
	}
	return false
}

func TestLog(t *testing.T) {
	var log logLines
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(t.Context(), EmbeddedConfig{
		Catalog: bank(t), Network: net, Log: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	entry := cl.DB.Catalog().MustTable("entry")
	if err := cl.DB.Update(t.Context(), func(x *txn.Txn) error {
		for k := range uint64(500) { // leaves are split, whatever has been trained before
			if err := x.Insert(entry, tables.Num(k), entry.NewRow()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := cl.DB.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testseed.Patience()); !log.has(t, "models trained") && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	transactions := len(log.records(t))
	for range 50 {
		if err := cl.DB.View(t.Context(), func(x *txn.Txn) error { _, err := x.Get(entry, tables.Num(1)); return err }); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(log.records(t)); n > transactions+3 { // the trainer may say something
		t.Errorf("50 Views made %d log records", n-transactions)
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"data server listens", "client connected", "partition sealed", "models trained",
		"client disconnected", "partition fenced", "data server stopped",
	} {
		if !log.has(t, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	for _, r := range log.records(t) {
		if r["server"] != 0.0 {
			t.Errorf("record without its server: %v", r)
		}
		if strings.Contains(r["level"].(string), "WARN") && r["msg"] != "training took long" { // on a slow machine
			t.Errorf("warning: %v", r)
		}
	}
}
