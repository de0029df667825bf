package history

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"testing"
	"time"

	"drtmx/internal/testseed"
)

const million = 1_000_000

// largeLogs returns a correct history of a million transactions by sixteen
// clients, as their logs.
var largeLogs = sync.OnceValue(func() []*Log {
	s := sim{
		r: rand.New(rand.NewPCG(1, 1)), processes: 16, overlap: 150, aborts: 0.02, unknowns: 0.01,
		gen: Generator{Seed: 1, Keys: 2000, OpsPerTxn: 10, ReadFraction: 0.4, ScanFraction: 0.15, ScanKeys: 8, RotateAfter: 24},
	}
	return s.run(million)
})

func BenchmarkMerge(b *testing.B) {
	logs := largeLogs()
	b.ReportAllocs()
	cpu := cpuTime(b)
	for b.Loop() {
		mustMerge(b, logs)
	}
	b.ReportMetric((cpuTime(b)-cpu).Seconds()/float64(b.N), "cpu-s/op")
}

// cpuTime returns the processor time of the process, which on a shared machine
// is more meaningful than the elapsed time.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCheck reports, besides the time, the heap at the end of a check that
// runs without garbage collection: an upper bound of what it needs at once, the
// history included.
func BenchmarkCheck(b *testing.B) {
	h := mustMerge(b, largeLogs())
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var r *Report
	var m runtime.MemStats
	cpu := cpuTime(b)
	for b.Loop() {
		runtime.GC()
		var err error
		if r, err = Check(h, Options{}); err != nil || !r.OK() {
			b.Fatal(err, r)
		}
		runtime.ReadMemStats(&m)
	}
	b.ReportMetric((cpuTime(b)-cpu).Seconds()/float64(b.N), "cpu-s/op")
	b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "heap-MiB")
	b.ReportMetric(float64(r.Txns), "txns")
	b.ReportMetric(float64(len(h.ops))/float64(r.Txns), "ops/txn")
	b.ReportMetric(float64(r.Edges), "edges")
	b.ReportMetric(float64(len(h.keys)), "keys")
}

// BenchmarkCheckStale damages one result such that the first read of the
// history is found stale at its end: one component of nearly everything.
func BenchmarkCheckStale(b *testing.B) {
	h := mustMerge(b, append([]*Log{bridge(b)}, largeLogs()...))
	for b.Loop() {
		r, err := Check(h, Options{})
		if err != nil || r.OK() {
			b.Fatal("not found", err)
		}
	}
}

// bridge is a log of two transactions, one before and one after all others, of
// which the second misses what the first wrote.
func bridge(tb testing.TB) *Log {
	rec := NewRecorder(1 << 20)
	rec.Begin(-10)
	rec.Append(1<<50, 1)
	rec.End(Committed, -5)
	rec.Begin(1 << 50)
	rec.Read(1<<50, nil)
	rec.End(Committed, 1<<50+1)
	return rec.Log()
}

func BenchmarkRecord(b *testing.B) {
	rec := NewRecorder(1)
	list := make([]Value, 16)
	for i := range list {
		list[i] = Value(i)
	}
	rows := []Row{{1, list}, {2, list}, {3, list}}
	n := Value(100)
	b.ReportAllocs()
	for b.Loop() {
		rec.Begin(0)
		rec.Read(1, list)
		rec.Scan(1, 5, rows)
		rec.Append(1, n)
		rec.End(Committed, 1)
		n++
	}
}

func BenchmarkWriteRead(b *testing.B) {
	l := largeLogs()[0]
	for b.Loop() {
		var buf bytes.Buffer
		if err := l.Write(&buf); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(buf.Len()))
		if _, err := ReadLog(&buf); err != nil {
			b.Fatal(err)
		}
	}
}

// The checker must find a violation that spans the history in reasonable time,
// and many small ones too.
func TestLargeComponents(t *testing.T) {
	s := sim{
		r: rand.New(rand.NewPCG(testseed.Of(t), 0)), processes: 16, overlap: 150,
		gen: Generator{Keys: 200, OpsPerTxn: 10, ReadFraction: 0.4, ScanFraction: 0.15, RotateAfter: 24},
	}
	logs := s.run(20_000)
	start := time.Now()
	r, err := Check(mustMerge(t, append(logs, bridge(t))), Options{})
	if err != nil || !r.Has(StaleRead) {
		t.Fatalf("%v %v", r, err)
	}
	if n := len(r.Anomalies); n != 1 || len(r.Anomalies[0].Edges) != 2 {
		t.Errorf("want one cycle of two: %v", r)
	}
	s.snapshotOf, s.clients = 2, nil
	r, err = Check(mustMerge(t, s.run(20_000)), Options{})
	if err != nil || r.OK() {
		t.Fatalf("%v %v", r, err)
	}
	t.Logf("checked in %v", time.Since(start))
}
