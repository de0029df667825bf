package bench

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/util"
	_ "github.com/pingcap/go-ycsb/pkg/workload" // go-ycsb's own, to compare with
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"

	"drtmx/internal/rng"
	"drtmx/ycsb/props"
)

// draws counts how often each record is asked for.
func draws(t *testing.T, n int, p *properties.Properties) (*Workload, map[int64]int) {
	t.Helper()
	w, err := NewWorkload(p)
	if err != nil {
		t.Fatal(err)
	}
	c, s, counts := w.newChooser(), rng.New(7), map[int64]int{}
	for range n {
		counts[c.draw(s)]++
	}
	return w, counts
}

// go-ycsb's zipfian also asks for the record after the last, and with inserts
// for many that are not there yet.
func TestRequestsAskForLoadedRecordsOnly(t *testing.T) {
	for _, distribution := range []string{"uniform", "zipfian", "latest", "hotspot", "exponential", "sequential"} {
		for _, records := range []int64{1, 2, 10, 1000} {
			_, counts := draws(t, 5000, with("recordcount", strconv.FormatInt(records, 10), "requestdistribution", distribution,
				"operationcount", "100000", "insertproportion", "0.5"))
			for n := range counts {
				if n < 0 || n >= records {
					t.Errorf("%s of %d records asks for %d", distribution, records, n)
				}
			}
			if records == 10 && len(counts) != 10 {
				t.Errorf("%s of 10 records asks for %d of them", distribution, len(counts))
			}
		}
	}
}

func TestRequestsStayInTheRangeOfAClient(t *testing.T) {
	for _, distribution := range []string{"uniform", "zipfian", "hotspot", "sequential"} {
		_, counts := draws(t, 20_000, with("recordcount", "100", "insertstart", "40", "insertcount", "20", "requestdistribution", distribution))
		for n := range counts {
			if n < 40 || n > 59 {
				t.Errorf("%s over records 40 to 59 asks for %d", distribution, n)
			}
		}
	}
}

// The most popular record of a Zipf over 10^10 ranks with constant 0.99 gets
// 1/zeta = 1/26.469 of all requests, by YCSB's own constant.
func TestZipfianIsAsSkewedAsYCSBs(t *testing.T) {
	const n = 400_000
	_, counts := draws(t, n, with("recordcount", "100000", "requestdistribution", "zipfian"))
	top := 0
	for _, c := range counts {
		top = max(top, c)
	}
	if share := float64(top) / n; math.Abs(share-1/26.469) > 0.003 {
		t.Errorf("the most popular record gets %.4f of requests, want %.4f", share, 1/26.469)
	}
}

func TestLatestFollowsInserts(t *testing.T) {
	w, err := NewWorkload(with("recordcount", "1000", "requestdistribution", "latest"))
	if err != nil {
		t.Fatal(err)
	}
	c, s := w.newChooser(), rng.New(7)
	for range 500 {
		n := w.inserted.next()
		for range 20 {
			if k := c.draw(s); k < 0 || k >= n {
				t.Fatalf("record %d is asked for while %d is being inserted", k, n)
			}
		}
		w.inserted.acknowledge(n)
	}
	newest := 0
	for range 10_000 {
		if c.draw(s) == 1499 {
			newest++
		}
	}
	if newest < 900 { // 1/zeta(1500) is 0.124
		t.Errorf("the newest record is asked for %d times in 10000", newest)
	}
}

func TestFrontierWaitsForGaps(t *testing.T) {
	var f frontier
	f.start(10)
	a, b, c := f.next(), f.next(), f.next()
	f.acknowledge(c)
	f.acknowledge(b)
	if f.last() != 9 {
		t.Errorf("last is %d while record 10 is missing", f.last())
	}
	f.acknowledge(a)
	if f.last() != 12 || len(f.mu.done) != 0 {
		t.Errorf("last is %d with %d pending, want 12 and none", f.last(), len(f.mu.done))
	}
}

func TestScanLengths(t *testing.T) {
	for _, distribution := range []string{"uniform", "zipfian"} {
		w, err := NewWorkload(with("recordcount", "10", "maxscanlength", "5", "scanlengthdistribution", distribution))
		if err != nil {
			t.Fatal(err)
		}
		s, seen := rng.New(7), map[int]int{}
		for range 10_000 {
			seen[w.scanLength(s)]++
		}
		if len(seen) != 5 || seen[1] == 0 || seen[5] == 0 {
			t.Errorf("%s: lengths %v, want 1 to 5", distribution, seen)
		}
	}
}

func TestFieldLengths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hist.txt")
	if err := os.WriteFile(path, []byte("BlockSize\t10\n0\t1\n2\t3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for distribution, want := range map[string][]int{
		"constant": {7}, "uniform": {1, 2, 3, 4, 5, 6, 7}, "zipfian": {1, 2, 3, 4, 5, 6, 7}, "histogram": {10, 30},
	} {
		w, err := NewWorkload(with("recordcount", "10", "fieldlength", "7", "fieldlengthdistribution", distribution, "fieldlengthhistogram", path))
		if err != nil {
			t.Fatal(err)
		}
		s, seen := rng.New(7), map[int]int{}
		for range 10_000 {
			seen[w.lengths(s)]++
		}
		for _, n := range want {
			if seen[n] == 0 {
				t.Errorf("%s: no field of %d bytes in %v", distribution, n, seen)
			}
		}
		if len(seen) != len(want) {
			t.Errorf("%s: lengths %v, want %v", distribution, seen, want)
		}
	}
	for _, text := range []string{"", "1\t2\n", "BlockSize\t0\n", "BlockSize\t10\nx\t1\n", "BlockSize\t10\n0\t-1\n", "BlockSize\t10\n0\t1\n0\t1\n", "BlockSize\t10\n0\n", "BlockSize\t10\n9999999\t1\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewWorkload(with("recordcount", "10", "fieldlengthdistribution", "histogram", "fieldlengthhistogram", path)); !errors.Is(err, props.ErrProperty) {
			t.Errorf("histogram %q: %v", text, err)
		}
	}
}

func TestKeysAreGoYCSBs(t *testing.T) {
	w, err := NewWorkload(with("recordcount", "10"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := w.key(3), "user"+util.IntToString(util.Hash64(3)); got != want {
		t.Errorf("key %s, want %s", got, want)
	}
	w, err = NewWorkload(with("recordcount", "10", "insertorder", "ordered", "zeropadding", "6", "keyprefix", "k"))
	if err != nil {
		t.Fatal(err)
	}
	if got := w.key(42); got != "k000042" {
		t.Errorf("key %s, want k000042", got)
	}
}

// A record that go-ycsb itself has written with dataintegrity=true is
// accepted: keys and values are the same.
func TestDeterministicValuesAreGoYCSBs(t *testing.T) {
	p := with("recordcount", "30", "operationcount", "200", "fieldlength", "60", "dataintegrity", "true", "readproportion", "1", "updateproportion", "0")
	theirs, err := goycsb.GetWorkloadCreator("core").Create(p)
	if err != nil {
		t.Fatal(err)
	}
	db := newFake()
	ctx := theirs.InitThread(t.Context(), 0, 1)
	for range 30 {
		if err := theirs.DoInsert(ctx, db); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := start(t, db, Run, p); err != nil || r.Failed > 0 {
		t.Errorf("%v, %d failed, the first with %v", err, r.Failed, r.First)
	}
}

func TestRunsRepeatFromTheirSeed(t *testing.T) {
	keys := func(seed string) string {
		w, err := NewWorkload(with("recordcount", "1000", "drtmx.seed", seed))
		if err != nil {
			t.Fatal(err)
		}
		a := w.newThread(Run, 3)
		return strings.Join(a.drawKeys(20), " ")
	}
	first, again, other := keys("5"), keys("5"), keys("6")
	if first != again || first == other {
		t.Error("the seed does not decide the keys")
	}
}

func TestBadPropertiesAreNamedTogether(t *testing.T) {
	for _, c := range []struct {
		p    []string
		want []string
	}{
		{nil, []string{"recordcount is missing: want the number of records", "operationcount is missing or 0"}},
		{[]string{"recordcount", "", "threadcount", "0"}, []string{"recordcount has no value: want a whole number of at least 1", `threadcount "0": want a whole number from 1 to 4096`}},
		{[]string{"recordcount", "10", "readproportion", "half", "updateproportion", "-1"}, []string{`readproportion "half": want a number from 0 to 1`, `updateproportion "-1"`}},
		{[]string{"recordcount", "10", "readproportion", "0", "updateproportion", "0"}, []string{"are all 0: want one of them above"}},
		{[]string{"recordcount", "10", "requestdistribution", "gaussian"}, []string{`requestdistribution "gaussian": want uniform, sequential, zipfian, latest, hotspot or exponential`}},
		{[]string{"recordcount", "10", "workload", "tpcc"}, []string{`workload "tpcc": want core`}},
		{[]string{"recordcount", "10", "insertstart", "5", "insertcount", "6"}, []string{"recordcount 10: want at least insertstart 5 and insertcount 6 together"}},
		{[]string{"recordcount", "10", "insertstart", "10"}, []string{"insertstart 10: want less than recordcount, 10"}},
		{[]string{"recordcount", "10", "threadcount", "20", "operationcount", "30"}, []string{}},
		{[]string{"recordcount", "10", "threadcount", "20", "operationcount", "3"}, []string{"threadcount 20: want at most one for each of the 3 operations (operationcount)"}},
		{[]string{"recordcount", "10", "operationcount", "9", "batch.size", "4", "scanproportion", "0.5"}, []string{"batch.size 4 with scanproportion or readmodifywriteproportion: want 1"}},
		{[]string{"recordcount", "10", "operationcount", "9", "dataintegrity", "true", "fieldlengthdistribution", "uniform"}, []string{"dataintegrity with fieldlengthdistribution uniform: want constant"}},
		{[]string{"recordcount", "10", "operationcount", "9", "outputstyle", "xml"}, []string{`outputstyle "xml": want plain, table or json`}},
		{[]string{"recordcount", "10", "operationcount", "9", "histogram.percentiles.export", "true"}, []string{"histogram.percentiles.export is not supported"}},
	} {
		_, err := NewPlan(with(c.p...), Run)
		if len(c.want) == 0 {
			if err != nil {
				t.Errorf("%q: %v", c.p, err)
			}
			continue
		}
		if !errors.Is(err, props.ErrProperty) {
			t.Errorf("%q: %v", c.p, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: no %q in %q", c.p, want, err)
			}
		}
	}
}

// What the comments of our workload files say is what they set.
func TestWorkloadFilesSayWhatYCSBSays(t *testing.T) {
	type mix struct{ read, update, insert, scan, rmw float64 }
	for name, want := range map[string]mix{
		"a": {read: 0.5, update: 0.5}, "b": {read: 0.95, update: 0.05}, "c": {read: 1},
		"d": {read: 0.95, insert: 0.05}, "e": {scan: 0.95, insert: 0.05}, "f": {read: 0.5, rmw: 0.5},
	} {
		path := filepath.Join("..", "workloads", "workload"+name)
		p, err := properties.LoadFile(path, properties.UTF8)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := NewPlan(p, Run)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		w := plan.workload
		got := mix{w.weights[opRead], w.weights[opUpdate], w.weights[opInsert], w.weights[opScan], w.weights[opReadModifyWrite]}
		distribution := "zipfian"
		if name == "d" {
			distribution = "latest"
		}
		if got != want || w.distribution != distribution || len(w.fields) != 10 || w.fieldLength != 100 || !w.readAll {
			t.Errorf("%s: %+v %s of %d fields of %d bytes, want %+v %s", path, got, w.distribution, len(w.fields), w.fieldLength, want, distribution)
		}
		if name != "e" {
			continue
		}
		s, seen := rng.New(7), map[int]bool{}
		for range 10_000 {
			seen[w.scanLength(s)] = true
		}
		if len(seen) != 100 || !seen[1] || !seen[100] {
			t.Errorf("%s: %d scan lengths, want 1 to 100", path, len(seen))
		}
	}
}
