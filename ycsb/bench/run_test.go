package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/magiconair/properties"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"
	"go.uber.org/goleak"

	"drtmx/internal/testseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a phase and fails the test if it cannot.
func start(t *testing.T, db goycsb.DB, phase Phase, p *properties.Properties) (*Result, error) {
	t.Helper()
	plan, err := NewPlan(p, phase)
	if err != nil {
		t.Fatal(err)
	}
	return Start(t.Context(), Config{Plan: plan, DB: db, Out: &bytes.Buffer{}})
}

func loadInto(t *testing.T, db goycsb.DB, p *properties.Properties) {
	t.Helper()
	if r, err := start(t, db, Load, p); err != nil || r.Failed > 0 {
		t.Fatalf("load: %v, %d failed, first %v", err, r.Failed, r.First)
	}
}

func lines(t *testing.T, r *Result) string {
	t.Helper()
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestLoadInsertsEveryRecordOnce(t *testing.T) {
	db := newFake()
	loadInto(t, db, with("recordcount", "1003", "threadcount", "4", "fieldcount", "3", "fieldlength", "7"))
	if len(db.rows) != 1003 || db.threads != 4 || db.closed != 4 || db.analyze != 1 {
		t.Fatalf("%d rows, %d threads, %d closed, analysed %d times", len(db.rows), db.threads, db.closed, db.analyze)
	}
	for key, row := range db.rows {
		if len(row) != 3 || len(row["field2"]) != 7 || !strings.HasPrefix(key, "user") {
			t.Fatalf("%s: %q", key, row)
		}
	}
}

// go-ycsb's batches run over the end of a load, and of a database without
// batches it measures nothing.
func TestBatchesAreMeasuredAndCutAtTheEnd(t *testing.T) {
	p := with("recordcount", "103", "threadcount", "2", "batch.size", "10",
		"operationcount", "55", "readproportion", "0.5", "updateproportion", "0.5")
	db := batchDB{newFake()}
	loadInto(t, db, p)
	if len(db.rows) != 103 {
		t.Fatalf("%d rows were loaded, want 103", len(db.rows))
	}
	db.batches = nil
	r, err := start(t, db, Run, p)
	if err != nil || r.Failed > 0 {
		t.Fatal(err, r.First)
	}
	sum := 0
	for _, n := range db.batches {
		sum += n
	}
	if sum != 55 {
		t.Errorf("batches of %v, want 55 operations together", db.batches)
	}
	if out := lines(t, r); !strings.Contains(out, "BATCH_READ - Takes(s)") || !strings.Contains(out, "TOTAL") {
		t.Errorf("report %q", out)
	}
	plain := newFake()
	loadInto(t, plain, p)
	if r, err = start(t, plain, Run, p); err != nil || r.Operations() != 55 {
		t.Errorf("%v, %d operations measured of a database without batches, want 55", err, r.Operations())
	}
}

func TestReadModifyWriteIsOneTransactionIfTheDatabaseHasIt(t *testing.T) {
	p := func(how string) *properties.Properties {
		return with("recordcount", "50", "operationcount", "100", "readproportion", "0", "updateproportion", "0",
			"readmodifywriteproportion", "1", "drtmx.rmw", how)
	}
	db := &rmwDB{fakeDB: newFake()}
	loadInto(t, db, p("transaction"))
	r, err := start(t, db, Run, p("transaction"))
	if err != nil || db.n != 100 || r.Operations() != 100 {
		t.Fatalf("%v, %d transactions, %d operations", err, db.n, r.Operations())
	}
	if out := lines(t, r); strings.Contains(out, "UPDATE") || !strings.Contains(out, "READ_MODIFY_WRITE - ") {
		t.Errorf("report %q", out)
	}
	r, err = start(t, db, Run, p("separate"))
	if err != nil || db.n != 100 || r.Operations() != 200 {
		t.Fatalf("separate: %v, %d transactions, %d operations, want 200 (reads and updates)", err, db.n, r.Operations())
	}
}

func TestMaxExecutionTimeEndsARun(t *testing.T) {
	db := newFake()
	p := with("recordcount", "10", "maxexecutiontime", "1")
	loadInto(t, db, p)
	started := time.Now()
	r, err := start(t, db, Run, p)
	if took := time.Since(started); err != nil || took < 900*time.Millisecond || took > 30*time.Second {
		t.Errorf("%v after %v, want about 1s", err, took)
	}
	if r.Operations() == 0 || r.Interrupted {
		t.Errorf("%d operations, interrupted %v", r.Operations(), r.Interrupted)
	}
}

func TestInterruptKeepsWhatRan(t *testing.T) {
	db := newFake()
	p := with("recordcount", "10", "operationcount", "1000000000", "threadcount", "3")
	loadInto(t, db, p)
	plan, err := NewPlan(p, Run)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		eventually(func() bool { db.mu.Lock(); defer db.mu.Unlock(); return len(db.reads) > 100 })
		cancel()
	}()
	r, err := Start(ctx, Config{Plan: plan, DB: db, Out: &bytes.Buffer{}})
	if err != nil || !r.Interrupted || r.Operations() < 100 || r.Failed > 0 {
		t.Errorf("%v, interrupted %v, %d operations, %d failed", err, r.Interrupted, r.Operations(), r.Failed)
	}
}

func TestWarmupIsNotMeasured(t *testing.T) {
	for begun := time.Now(); ; {
		db := newFake()
		p := with("recordcount", "10", "operationcount", "40", "warmuptime", "1", "target", "200")
		loadInto(t, db, p)
		r, err := start(t, db, Run, p)
		if err != nil || r.Operations() < 40 || r.Operations() > 41 { // one may begin before the end of the warm-up and end after
			t.Fatalf("%v, %d operations measured, want 40", err, r.Operations())
		}
		if n := len(db.reads); n >= 150 {
			break
		} else if time.Since(begun) > testseed.Patience()/2 { // else the process may have stood still
			t.Fatalf("%d operations with the warm-up, want about 240", n)
		}
	}
}

// One operation stalls. Those that were due meanwhile are late, and the
// intended latency says so; the service time does not.
func TestIntendedLatencyCountsFromWhenAnOperationWasDue(t *testing.T) {
	db := newFake()
	p := with("recordcount", "10", "operationcount", "200", "target", "1000", "readproportion", "1", "updateproportion", "0")
	loadInto(t, db, p)
	var n atomic.Int64
	db.stall = func(string) {
		if n.Add(1) == 50 {
			time.Sleep(100 * time.Millisecond)
		}
	}
	r, err := start(t, db, Run, p)
	if err != nil {
		t.Fatal(err)
	}
	reads := r.types[kindRead]
	service, intended := reads.Latency.QuantileUs(0.8), reads.Due.QuantileUs(0.8)
	// Of 200 operations 100 were due within the stall, so the 80th percentile
	// of the wait is at least 50 ms; few operations themselves took long.
	if service > 20_000 || intended < 40_000 {
		t.Errorf("80th percentiles: service %.0f us, intended %.0f us", service, intended)
	}
	var out bytes.Buffer
	r.WriteFine(&out)
	for _, name := range []string{"READ/service - ", "READ/intended - ", "TOTAL/service", "TOTAL/intended"} {
		if !strings.Contains(out.String(), name) {
			t.Errorf("no %q in %q", name, out.String())
		}
	}
}

func TestTargetRateIsHeld(t *testing.T) {
	db := newFake()
	p := with("recordcount", "10", "operationcount", "300", "target", "1000", "threadcount", "3")
	loadInto(t, db, p) // at that rate too
	r, err := start(t, db, Run, p)
	if err != nil || r.Took < 290*time.Millisecond {
		t.Errorf("%v: 300 operations at 1000 a second took %v", err, r.Took)
	}
}

func TestFailuresAreCountedAndFatalOnesEndTheRun(t *testing.T) {
	db := newFake()
	p := with("recordcount", "10", "operationcount", "100", "readproportion", "1", "updateproportion", "0", "silence", "false")
	loadInto(t, db, p)
	var n atomic.Int64
	gone := errors.New("gone")
	db.fail = func(string, string) error {
		switch n.Add(1) {
		case 3, 4:
			return errors.New("odd")
		case 50:
			return fmt.Errorf("server: %w", gone)
		}
		return nil
	}
	plan, err := NewPlan(p, Run)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r, err := Start(t.Context(), Config{Plan: plan, DB: db, Out: &out, Fatal: func(err error) bool { return errors.Is(err, gone) }})
	if !errors.Is(err, gone) || r.Failed != 3 || r.First.Error() != "odd" || r.Operations() != 47 {
		t.Errorf("%v, %d failed, first %v, %d operations", err, r.Failed, r.First, r.Operations())
	}
	if strings.Count(out.String(), "operation err: odd\n") != 2 {
		t.Errorf("said %q", out.String())
	}
	if report := lines(t, r); !strings.Contains(report, "READ_ERROR - Takes(s): ") || !strings.Contains(report, "Count: 3, ") {
		t.Errorf("report %q", report)
	}
}

func TestDataIntegrity(t *testing.T) {
	db := newFake()
	p := with("recordcount", "100", "operationcount", "2000", "threadcount", "4", "dataintegrity", "true",
		"readproportion", "0.5", "updateproportion", "0.2", "insertproportion", "0.1", "readmodifywriteproportion", "0.2")
	loadInto(t, db, p)
	r, err := start(t, db, Run, p)
	if err != nil || r.Failed > 0 {
		t.Fatal(err, r.First)
	}
	for _, row := range db.rows {
		row["field3"][5] ^= 1
	}
	if _, err = start(t, db, Run, p); !errors.Is(err, ErrIntegrity) {
		t.Errorf("a changed value: %v", err)
	}
	for _, row := range db.rows {
		row["field3"][5] ^= 1
		delete(row, "field7")
	}
	if _, err = start(t, db, Run, with("recordcount", "100", "operationcount", "10", "dataintegrity", "true", "readproportion", "1", "updateproportion", "0")); !errors.Is(err, ErrIntegrity) {
		t.Errorf("a lost field: %v", err)
	}
}

func TestInsertsAreRepeatedIfAskedFor(t *testing.T) {
	db := newFake()
	var n atomic.Int64
	db.fail = func(op, _ string) error {
		if op == "INSERT" && n.Add(1)%3 != 0 {
			return errors.New("busy")
		}
		return nil
	}
	r, err := start(t, db, Load, with("recordcount", "20", "core_workload_insertion_retry_limit", "2", "core_workload_insertion_retry_interval", "0"))
	if err != nil || r.Failed != 0 || len(db.rows) != 20 {
		t.Errorf("%v, %d failed, %d rows", err, r.Failed, len(db.rows))
	}
}
