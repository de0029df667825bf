package ycsb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/client"
	"github.com/pingcap/go-ycsb/pkg/measurement"
	_ "github.com/pingcap/go-ycsb/pkg/workload"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"
	"go.uber.org/goleak"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/ycsb/bench"
	"drtmx/ycsb/props"
	"drtmx/ycsb/usertable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// with are properties, given as name, value, …
func with(pairs ...string) *properties.Properties {
	m := map[string]string{"workload": "core", "measurement.interval": "1000"}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return properties.LoadMap(m)
}

// create opens a database and closes it with the test.
func create(t *testing.T, p *properties.Properties) *database {
	t.Helper()
	db, err := goycsb.GetDBCreator("drtmx").Create(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db.(*database)
}

// worker is the context of one thread.
func worker(t *testing.T, db *database) context.Context {
	t.Helper()
	ctx := db.InitThread(t.Context(), 0, 1)
	t.Cleanup(func() { db.CleanupThread(ctx) })
	return ctx
}

func values(pairs ...string) map[string][]byte {
	m := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = []byte(pairs[i+1])
	}
	return m
}

func same(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }

const table = "usertable"

// layouts are the shapes of a table that every operation is tried on.
var layouts = map[string][]string{
	"ordered by range": {"drtmx.servers", "2", "drtmx.partitions", "3"},
	"ordered by hash":  {"drtmx.servers", "2", "drtmx.partitioning", "hash"},
	"hash":             {"drtmx.servers", "2", "drtmx.primary", "hash"},
	"one server":       {"drtmx.servers", "1"},
	"ordered by RPC":   {"drtmx.servers", "2", "drtmx.design", "drtmh"},
	"client":           {"drtmx.servers", "2", "drtmx.update", "client"},
}

func TestOperations(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			db := create(t, with(append([]string{"fieldcount", "3"}, layout...)...))
			ctx := worker(t, db)
			check := func(err, want error) {
				t.Helper()
				if !errors.Is(err, want) {
					t.Fatalf("%v, want %v", err, want)
				}
			}
			read := func(key string, want map[string][]byte, fields ...string) {
				t.Helper()
				got, err := db.Read(ctx, table, key, fields)
				if err != nil || !same(got, want) {
					t.Fatalf("%s is %q, want %q, %v", key, got, want, err)
				}
			}
			check(db.Insert(ctx, table, "ann", values("field0", "a", "field2", strings.Repeat("c", 3000))), nil)
			check(db.Insert(ctx, table, "ann", values("field0", "b")), txn.ErrExists)
			read("ann", values("field0", "a", "field1", "", "field2", strings.Repeat("c", 3000)))
			read("ann", values("field0", "a"), "field0")
			read("ann", values("field0", "a", "field1", ""), "field1", "field0")
			check(db.Update(ctx, table, "ann", values("field2", "cc", "field1", "b")), nil)
			read("ann", values("field0", "a", "field1", "b", "field2", "cc"))
			check(db.Update(ctx, table, "ann", values("field0", "1", "field1", "2", "field2", "3")), nil)
			read("ann", values("field0", "1", "field1", "2", "field2", "3"))
			old, err := db.ReadModifyWrite(ctx, table, "ann", []string{"field0"}, values("field0", strings.Repeat("x", 500)))
			if err != nil || !same(old, values("field0", "1")) {
				t.Fatalf("read-modify-write read %q, %v", old, err)
			}
			read("ann", values("field0", strings.Repeat("x", 500), "field1", "2", "field2", "3"))
			_, err = db.Read(ctx, table, "bob", nil)
			check(err, txn.ErrNotFound)
			check(db.Update(ctx, table, "bob", values("field0", "a")), txn.ErrNotFound)
			check(db.Update(ctx, table, "bob", values("field0", "1", "field1", "2", "field2", "3")), txn.ErrNotFound)
			_, err = db.ReadModifyWrite(ctx, table, "bob", nil, values("field0", "1"))
			check(err, txn.ErrNotFound)
			check(db.Delete(ctx, table, "bob"), txn.ErrNotFound)
			check(db.Delete(ctx, table, "ann"), nil)
			_, err = db.Read(ctx, table, "ann", nil)
			check(err, txn.ErrNotFound)
			check(db.Insert(ctx, table, "ann", values("field0", "again")), nil)
			read("ann", values("field0", "again"), "field0")

			check(db.Insert(ctx, table, "bob", values("field3", "a")), ErrNoField)
			_, err = db.Read(ctx, table, "ann", []string{"field9"})
			check(err, ErrNoField)
			read("ann", values("field0", "again"), "field0")
			check(db.Insert(ctx, "other", "bob", values("field0", "a")), ErrNoTable)
			check(db.Insert(ctx, table, strings.Repeat("k", 5000), values("field0", "a")), tables.ErrKey)
			check(db.Insert(ctx, table, "bob", values("field0", strings.Repeat("v", 1<<17))), ErrValue)
			if err := db.Insert(ctx, table, "bob", values("field0", strings.Repeat("v", 40000), "field1", strings.Repeat("v", 40000))); err == nil {
				t.Fatal("a record of 80,000 bytes was accepted")
			}
			check(db.Delete(context.Background(), table, "ann"), ErrNoThread)
		})
	}
}

// TestNumberKeys: with numbers as keys, records are found by the numbers in their keys, in the
// order of these, and other keys are refused.
func TestNumberKeys(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			db := create(t, with(append([]string{"fieldcount", "3", "fieldlength", "40", "drtmx.keys", "number"}, layout...)...))
			ctx := worker(t, db)
			fail := func(err, want error) {
				t.Helper()
				if !errors.Is(err, want) {
					t.Fatalf("%v, want %v", err, want)
				}
			}
			const n = 300
			for i := range n {
				fail(db.Insert(ctx, table, fmt.Sprintf("user%d", i*i), values("field0", strconv.Itoa(i), "field2", strings.Repeat("c", i%41))), nil)
			}
			fail(db.Insert(ctx, table, "user0004", values("field0", "b")), txn.ErrExists)
			fail(db.Update(ctx, table, "user9", values("field1", "nine")), nil)
			got, err := db.Read(ctx, table, "user9", nil)
			if err != nil || !same(got, values("field0", "3", "field1", "nine", "field2", "ccc")) {
				t.Fatalf("user9 is %q, %v", got, err)
			}
			old, err := db.ReadModifyWrite(ctx, table, "user100", []string{"field0"}, values("field0", "x"))
			if err != nil || !same(old, values("field0", "10")) {
				t.Fatalf("read-modify-write read %q, %v", old, err)
			}
			_, err = db.Read(ctx, table, "user5", nil)
			fail(err, txn.ErrNotFound)
			fail(db.Update(ctx, table, "user5", values("field0", "a")), txn.ErrNotFound)
			fail(db.BatchUpdate(ctx, table, []string{"user1", "user16"}, []map[string][]byte{values("field0", "one"), values("field0", "sixteen")}), nil)
			rows, err := db.BatchRead(ctx, table, []string{"user16", "user1"}, []string{"field0"})
			if err != nil || len(rows) != 2 || !same(rows[0], values("field0", "sixteen")) || !same(rows[1], values("field0", "one")) {
				t.Fatalf("the batch read %q, %v", rows, err)
			}
			if db.layout.Primary == usertable.Ordered {
				rows, err := db.Scan(ctx, table, "user2500", 100, []string{"field0"})
				if err != nil || len(rows) != 100 {
					t.Fatalf("a scan of %d rows, %v", len(rows), err)
				}
				for i, row := range rows {
					if want := strconv.Itoa(50 + i); string(row["field0"]) != want {
						t.Fatalf("row %d of the scan is %q, want %s", i, row, want)
					}
				}
			}
			fail(db.Delete(ctx, table, "user4"), nil)
			_, err = db.Read(ctx, table, "user4", nil)
			fail(err, txn.ErrNotFound)
			for _, key := range []string{"bob", "user", "user-1", "user18446744073709551616", "4"} {
				_, err := db.Read(ctx, table, key, nil)
				fail(err, tables.ErrKey)
				if !strings.Contains(err.Error(), "drtmx.keys=number") {
					t.Errorf("key %s: %v", key, err)
				}
				fail(db.Insert(ctx, table, key, values("field0", "a")), tables.ErrKey)
				fail(db.Update(ctx, table, key, values("field0", "a")), tables.ErrKey)
				fail(db.Delete(ctx, table, key), tables.ErrKey)
				_, err = db.BatchRead(ctx, table, []string{"user9", key}, nil)
				fail(err, tables.ErrKey)
			}
			fail(db.Insert(ctx, table, "user7", values("field0", strings.Repeat("v", 41))), ErrValue)
		})
	}
}

func TestUpsert(t *testing.T) {
	db := create(t, with("drtmx.upsert", "true"))
	ctx := worker(t, db)
	for _, v := range []string{"a", "b"} {
		if err := db.Insert(ctx, table, "ann", values("field0", v)); err != nil {
			t.Fatal(err)
		}
		if got, err := db.Read(ctx, table, "ann", []string{"field0"}); err != nil || string(got["field0"]) != v {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// TestInsertByClient: an insert that looks first does what one does that does not.
func TestInsertByClient(t *testing.T) {
	for _, upsert := range []string{"false", "true"} {
		db := create(t, with("drtmx.insert", "client", "drtmx.upsert", upsert))
		ctx := worker(t, db)
		if err := db.Insert(ctx, table, "ann", values("field0", "a")); err != nil {
			t.Fatal(err)
		}
		want, err := "a", db.Insert(ctx, table, "ann", values("field0", "b"))
		if upsert == "true" {
			want = "b"
		} else if errors.Is(err, txn.ErrExists) {
			err = nil
		} else {
			t.Errorf("inserted twice: %v", err)
		}
		if err != nil {
			t.Error(err)
		}
		if got, err := db.Read(ctx, table, "ann", []string{"field0"}); err != nil || string(got["field0"]) != want {
			t.Errorf("upsert=%s: %q, %v, want %q", upsert, got, err, want)
		}
	}
}

// go-ycsb takes its values back when an operation returns, and may write to
// what it was given.
func TestValuesAreCopiedBothWays(t *testing.T) {
	db := create(t, with("fieldcount", "2"))
	ctx := worker(t, db)
	v := values("field0", "hello", "field1", "world")
	if err := db.Insert(ctx, table, "ann", v); err != nil {
		t.Fatal(err)
	}
	copy(v["field0"], "XXXXX")
	got, err := db.Read(ctx, table, "ann", nil)
	if err != nil || !same(got, values("field0", "hello", "field1", "world")) {
		t.Fatalf("%q, %v", got, err)
	}
	copy(got["field0"], "YYYYY")
	got["field0"] = append(got["field0"], "overflow"...) // must not reach the next value
	if string(got["field1"]) != "world" {
		t.Errorf("values share memory: %q", got)
	}
	again, err := db.Read(ctx, table, "ann", nil)
	if err != nil || !same(again, values("field0", "hello", "field1", "world")) {
		t.Fatalf("%q, %v", again, err)
	}
	// What was read stays when the thread reads, or writes, another record.
	if err := db.Insert(ctx, table, "bob", values("field0", "HELLO", "field1", "WORLD")); err != nil {
		t.Fatal(err)
	}
	other, err := db.Read(ctx, table, "bob", nil)
	old, err2 := db.ReadModifyWrite(ctx, table, "bob", nil, values("field0", "jello"))
	batch, err3 := db.BatchRead(ctx, table, []string{"ann", "bob"}, nil)
	last, err4 := db.Read(ctx, table, "bob", nil)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ got, want map[string][]byte }{
		{again, values("field0", "hello", "field1", "world")},
		{other, values("field0", "HELLO", "field1", "WORLD")},
		{old, values("field0", "HELLO", "field1", "WORLD")},
		{batch[0], values("field0", "hello", "field1", "world")},
		{batch[1], values("field0", "jello", "field1", "WORLD")},
		{last, values("field0", "jello", "field1", "WORLD")},
	} {
		if !same(c.got, c.want) {
			t.Errorf("read %d has become %q, want %q", i, c.got, c.want)
		}
	}
	rows, err := db.Scan(ctx, table, "a", 10, nil)
	if err != nil || len(rows) != 2 {
		t.Fatal(rows, err)
	}
	copy(rows[0]["field1"], "ZZZZZ")
	if string(again["field1"]) != "world" {
		t.Error("reads share memory with each other")
	}
}

// Scans are in key order across partitions, with what was deleted left out.
func TestScansAcrossPartitions(t *testing.T) {
	for _, partitioning := range []string{"range", "hash"} {
		t.Run(partitioning, func(t *testing.T) {
			db := create(t, with("fieldcount", "1", "recordcount", "400", "drtmx.servers", "2", "drtmx.partitions", "5", "drtmx.partitioning", partitioning))
			ctx := worker(t, db)
			keys := props.Keys{Prefix: "user", Hashed: true}
			var there []string
			for i := range int64(400) {
				key := keys.Name(i)
				if err := db.Insert(ctx, table, key, values("field0", key)); err != nil {
					t.Fatal(err)
				}
				if i%4 == 0 {
					if err := db.Delete(ctx, table, key); err != nil {
						t.Fatal(err)
					}
					continue
				}
				there = append(there, key)
			}
			slices.Sort(there)
			seen := map[int]bool{}
			for _, key := range there {
				home, err := db.db.Home(db.table, tables.Str(key))
				if err != nil {
					t.Fatal(err)
				}
				seen[int(home)] = true
			}
			if len(seen) != 5 {
				t.Errorf("the records are in %d partitions of 5", len(seen))
			}
			s := rng.New(1)
			for range 300 {
				i, n := s.Intn(len(there)), 1+s.Intn(150)
				want := there[i:min(i+n, len(there))]
				rows, err := db.Scan(ctx, table, there[i], n, nil)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, row := range rows {
					got = append(got, string(row["field0"]))
				}
				if !slices.Equal(got, want) {
					t.Fatalf("scan of %d from %s: %d rows %q, want %d", n, there[i], len(got), got, len(want))
				}
			}
			if rows, err := db.Scan(ctx, table, "v", 10, nil); err != nil || len(rows) != 0 {
				t.Errorf("scan past the end: %q, %v", rows, err)
			}
			if rows, err := db.Scan(ctx, table, "", 1, nil); err != nil || len(rows) != 1 || string(rows[0]["field0"]) != there[0] {
				t.Errorf("scan from the beginning: %q, %v", rows, err)
			}
		})
	}
}

func TestBatches(t *testing.T) {
	db := create(t, with("fieldcount", "2", "drtmx.servers", "2", "drtmx.partitions", "4"))
	ctx := worker(t, db)
	var keys []string
	var rows []map[string][]byte
	for i := range 50 {
		keys, rows = append(keys, fmt.Sprintf("user%d", i*7919)), append(rows, values("field0", strconv.Itoa(i)))
	}
	if err := db.BatchInsert(ctx, table, keys, rows); err != nil {
		t.Fatal(err)
	}
	got, err := db.BatchRead(ctx, table, keys, []string{"field0"})
	if err != nil || !slices.EqualFunc(got, rows, same) {
		t.Fatalf("%q, %v", got, err)
	}
	// One key that is there fails the whole batch.
	if err := db.BatchInsert(ctx, table, []string{"user1", keys[3]}, rows[:2]); !errors.Is(err, txn.ErrExists) || !strings.Contains(err.Error(), "a batch of 2 records") {
		t.Fatal(err)
	}
	if _, err := db.Read(ctx, table, "user1", nil); !errors.Is(err, txn.ErrNotFound) {
		t.Fatalf("a batch that failed left a record: %v", err)
	}
	// A key twice: both updates count.
	if err := db.BatchUpdate(ctx, table, []string{keys[0], keys[1], keys[0]},
		[]map[string][]byte{values("field0", "x"), values("field0", "y"), values("field1", "z")}); err != nil {
		t.Fatal(err)
	}
	if got, err := db.Read(ctx, table, keys[0], nil); err != nil || !same(got, values("field0", "x", "field1", "z")) {
		t.Fatalf("%q, %v", got, err)
	}
	if err := db.BatchUpdate(ctx, table, []string{keys[0], "user2"}, []map[string][]byte{values("field0", "q"), values("field0", "q")}); !errors.Is(err, txn.ErrNotFound) {
		t.Fatal(err)
	}
	if err := db.BatchDelete(ctx, table, keys[:49]); err != nil {
		t.Fatal(err)
	}
	if _, err := db.BatchRead(ctx, table, keys[48:], nil); !errors.Is(err, txn.ErrNotFound) {
		t.Fatal(err)
	}
	if rows, err := db.Scan(ctx, table, "", 100, nil); err != nil || len(rows) != 1 {
		t.Fatalf("%d rows are left, want 1, %v", len(rows), err)
	}
	if err := db.BatchUpdate(ctx, table, keys[:2], rows[:1]); !errors.Is(err, ErrValue) {
		t.Fatal(err)
	}
}

// threads runs f on so many threads.
func threads(t *testing.T, db *database, n int, f func(ctx context.Context, id int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for id := range n {
		wg.Go(func() {
			ctx := db.InitThread(t.Context(), id, n)
			defer db.CleanupThread(ctx)
			if err := f(ctx, id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Every value that a read-modify-write replaced was written by exactly one
// other: no update is lost. With Read and Update, as go-ycsb does it, some are.
func TestReadModifyWritesLoseNoUpdate(t *testing.T) {
	for _, where := range []string{"procedure", "client"} {
		t.Run(where, func(t *testing.T) { loseNoUpdate(t, where) })
	}
}

func loseNoUpdate(t *testing.T, where string) {
	db := create(t, with("fieldcount", "2", "drtmx.servers", "2", "drtmx.update", where))
	if err := db.Insert(worker(t, db), table, "hot", values("field0", "first", "field1", strings.Repeat("p", 100))); err != nil {
		t.Fatal(err)
	}
	const each, n = 200, 4
	var mu sync.Mutex
	replaced := map[string]int{}
	threads(t, db, n, func(ctx context.Context, id int) error {
		for i := range each {
			old, err := db.ReadModifyWrite(ctx, table, "hot", []string{"field0"}, values("field0", fmt.Sprintf("%d-%d", id, i)))
			if err != nil {
				return err
			}
			mu.Lock()
			replaced[string(old["field0"])]++
			mu.Unlock()
		}
		return nil
	})
	if len(replaced) != each*n {
		t.Errorf("%d values were replaced by %d read-modify-writes", len(replaced), each*n)
	}
}

// Batches are atomic: a reader sees all of one or none.
func TestBatchesAreAtomic(t *testing.T) {
	db := create(t, with("fieldcount", "1", "drtmx.servers", "2", "drtmx.partitioning", "hash"))
	keys := []string{"a", "b", "c", "d", "e", "f"}
	rows := func(v string) (out []map[string][]byte) {
		for range keys {
			out = append(out, values("field0", v))
		}
		return out
	}
	if err := db.BatchInsert(worker(t, db), table, keys, rows("start")); err != nil {
		t.Fatal(err)
	}
	threads(t, db, 4, func(ctx context.Context, id int) error {
		for i := range 100 {
			if id < 2 {
				if err := db.BatchUpdate(ctx, table, keys, rows(strings.Repeat(strconv.Itoa(id), i+1))); err != nil {
					return err
				}
				continue
			}
			got, err := db.BatchRead(ctx, table, keys, nil)
			if id == 3 {
				got, err = db.Scan(ctx, table, "a", 10, nil)
			}
			if err != nil {
				return err
			}
			for _, row := range got {
				if len(got) != len(keys) || !same(row, got[0]) {
					return fmt.Errorf("a part of a batch: %q", got)
				}
			}
		}
		return nil
	})
}

// go-ycsb's own client and workload, with the integrity of all values checked
// (a wrong one ends the process), on every kind of table.
func TestGoYCSBsOwnClientChecksIntegrity(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			mix := []string{"readproportion", "0.4", "updateproportion", "0.2", "insertproportion", "0.1", "scanproportion", "0.1", "readmodifywriteproportion", "0.2"}
			if name == "hash" {
				mix[7] = "0"
			}
			threads := "4"
			if testseed.Race { // go-ycsb's generators race with each other
				threads = "1"
			}
			p := with(slices.Concat(layout, mix, []string{
				"recordcount", "300", "operationcount", "1000", "threadcount", threads, "dataintegrity", "true", "silence", "false",
				"fieldlength", "120", "maxscanlength", "20", "requestdistribution", "uniform", "dotransactions", "false",
			})...)
			measurement.InitMeasure(p)
			db := create(t, p)
			w, err := goycsb.GetWorkloadCreator("core").Create(p)
			if err != nil {
				t.Fatal(err)
			}
			wrapped := client.DbWrapper{DB: db}
			client.NewClient(p, w, wrapped).Run(t.Context())
			if _, _, err := p.Set("dotransactions", "true"); err != nil {
				t.Fatal(err)
			}
			client.NewClient(p, w, wrapped).Run(t.Context())
		})
	}
}

// The six workloads by our own client: no operation fails.
func TestWorkloads(t *testing.T) {
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		t.Run(name, func(t *testing.T) {
			p, err := props.Load([]string{"workloads/workload" + name}, []string{
				"recordcount=500", "operationcount=1000", "threadcount=4", "dataintegrity=true", "measurement.interval=0", "drtmx.servers=2",
			})
			if err != nil {
				t.Fatal(err)
			}
			db := create(t, p)
			for _, phase := range []bench.Phase{bench.Load, bench.Run} {
				plan, err := bench.NewPlan(p, phase)
				if err != nil {
					t.Fatal(err)
				}
				r, err := bench.Start(t.Context(), bench.Config{Plan: plan, DB: db, Out: &bytes.Buffer{}, Fatal: Fatal})
				if err != nil || r.Failed > 0 {
					t.Fatalf("%s: %v, %d failed, the first with %v", phase, err, r.Failed, r.First)
				}
			}
		})
	}
}

// TestDataDirectory: a store with a directory has its records again when it is opened
// with it, with the shape that it has there.
func TestDataDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	open := func(pairs ...string) (*database, error) {
		db, err := goycsb.GetDBCreator("drtmx").Create(with(append([]string{"drtmx.datadir", dir, "fieldcount", "2"}, pairs...)...))
		if err != nil {
			return nil, err
		}
		return db.(*database), nil
	}
	const records = 200
	key := func(i int) string { return fmt.Sprintf("user%03d", i) }
	for round, pairs := range [][]string{{"drtmx.servers", "2", "drtmx.partitions", "3"}, nil, {"drtmx.durability", "disk", "drtmx.servers", "2"}} {
		db, err := open(pairs...)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if n := db.db.Partitions(); n != 3 {
			t.Errorf("round %d: %d partitions", round, n)
		}
		ctx := db.InitThread(t.Context(), 0, 1)
		for i := range records {
			if round == 0 {
				err = db.Insert(ctx, table, key(i), values("field0", "0", "field1", key(i)))
			} else {
				var old map[string][]byte
				old, err = db.ReadModifyWrite(ctx, table, key(i), nil, values("field0", fmt.Sprint(round)))
				if want := values("field0", fmt.Sprint(round-1), "field1", key(i)); err == nil && !same(old, want) {
					t.Fatalf("round %d: %s is %q, want %q", round, key(i), old, want)
				}
			}
			if err != nil {
				t.Fatalf("round %d, %s: %v", round, key(i), err)
			}
		}
		if again, err := open(); err == nil || again != nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), dir) {
			t.Errorf("opened twice: %v", err)
		}
		db.CleanupThread(ctx)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		p    []string
		want string
	}{
		{[]string{"drtmx.servers", "3"}, "is that of 2 data servers"},
		{[]string{"drtmx.partitions", "2"}, "has 3"},
		{[]string{"drtmx.durability", "memory"}, "drtmx.durability memory and drtmx.datadir"},
		{[]string{"drtmx.datadir", "", "drtmx.durability", "disk"}, "a directory for the data"},
	} {
		if db, err := open(c.p...); err == nil || db != nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", c.p, err, c.want)
		}
	}
}

func TestBadProperties(t *testing.T) {
	for _, c := range []struct {
		p    []string
		want string
	}{
		{[]string{"drtmx.fabrik", "shm"}, "unknown property drtmx.fabrik"},
		{[]string{"drtmx.fabric", "tin"}, `drtmx.fabric "tin": want inproc or shm`},
		{[]string{"drtmx.servers", "0"}, `drtmx.servers "0": want a whole number from 1`},
		{[]string{"drtmx.servers", "4", "drtmx.partitions", "2"}, "at least one for each of the 4 servers"},
		{[]string{"drtmx.addr", ""}, "drtmx.addr has no value"},
		{[]string{"drtmx.addr", "d", "drtmx.servers", "2"}, "drtmx.servers with drtmx.addr: want one of them"},
		{[]string{"drtmx.addr", "d", "drtmx.writerlease", "500"}, "drtmx.writerlease with drtmx.addr: want one of them"},
		{[]string{"drtmx.design", "rpc"}, `drtmx.design "rpc": want drtmx or drtmh`},
		{[]string{"drtmx.keys", "roman"}, `drtmx.keys "roman": want string, number or spread`},
		{[]string{"drtmx.keys", "number", "fieldlengthdistribution", "histogram"}, "drtmx.keys number with fieldlengthdistribution histogram: want another distribution"},
		{[]string{"drtmx.cache", "tree"}, "drtmx.cache tree with drtmx.keys string: want drtmx.keys=number"},
		{[]string{"drtmx.primary", "hash", "scanproportion", "0.1"}, "drtmx.primary hash with scanproportion above 0"},
		{[]string{"fieldcount", "10", "fieldlength", "60000"}, "want records of at most"},
		{[]string{"fieldcount", "100000"}, `fieldcount "100000": want a whole number from 1 to`},
		{[]string{"table", "a b"}, `table name "a b"`},
		{[]string{"drtmx.addr", "/nowhere/at/all.sock"}, "open the database at /nowhere/at/all.sock"},
		{[]string{"drtmx.fabric", "shm"}, "this program cannot start data servers as processes"},
	} {
		db, err := goycsb.GetDBCreator("drtmx").Create(with(c.p...))
		if err == nil {
			_ = db.Close()
		}
		if err == nil || db != nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", c.p, err, c.want)
		}
	}
}
