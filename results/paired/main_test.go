package main

import (
	"go/parser"
	"go/token"
	"io"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"drtmx/results/figures"
)

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range []string{"", "-before a -turns 0", "-before a -run 1ms", "-before a x", "-before a -only (", "-nothing"} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	if o, err := parse([]string{"-before", "a"}, io.Discard); err != nil || o.turns != 10 || o.commits != [2]string{"a", "HEAD"} {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestRatesOfALoadAndARun: the load's lines come first, and lines of service times are
// not taken for them.
func TestRatesOfALoadAndARun(t *testing.T) {
	got := ratesIn(`INSERT/service - Takes(s): 0.3, Count: 20000, OPS: 1.5
INSERT - Takes(s): 0.3, Count: 20000, OPS: 60193.8, Avg(us): 43
TOTAL  - Takes(s): 0.3, Count: 20000, OPS: 60193.8, Avg(us): 43
TOTAL/service - Takes(s): 1.0, Count: 96012, OPS: 2.5
READ   - Takes(s): 1.0, Count: 47765, OPS: 47776.8, Avg(us): 4
TOTAL  - Takes(s): 1.0, Count: 96012, OPS: 96035.8, Avg(us): 28
`)
	if got["operations/s"] != 96035.8 || got["loaded rows/s"] != 60193.8 {
		t.Errorf("%v", got)
	}
}

func TestBenchmarkLines(t *testing.T) {
	got := figures.Benchmarks(`goos: linux
BenchmarkServer/get/tree/goroutines=1-2         	 1000000	       319.5 ns/op	       0 B/op
BenchmarkGet/two_rounds	     100	      20 ns/op	 2.000 rounds/op
PASS
`)
	want := map[string]float64{"get/tree/goroutines=1 ns/op": 319.5, "get/tree/goroutines=1 B/op": 0, "two_rounds ns/op": 20, "two_rounds rounds/op": 2}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestPage(t *testing.T) {
	o := &options{turns: 3, run: time.Second, only: regexp.MustCompile("")}
	all := cells(o)
	for _, c := range all {
		for at := range 2 {
			c.values[at] = map[string][]float64{}
			for _, m := range c.metrics {
				c.values[at][m] = []float64{100, 200, float64(400 * (at + 1))}
			}
		}
	}
	var b strings.Builder
	if err := o.print(&b, [2]side{{commit: "old"}, {commit: "new"}}, all, time.Now(), "0 0 0"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| mix | transactions/s | 200 | 200 | **1.000** | 1.00 to 2.00 |", "after is new", "| YCSB F |", "drtmx tpcc run --mix full", "-run '^$' -bench"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	if r := row([]float64{0, 0}, []float64{1, 1}); r != "0.0000 | 1.00 | – | –" {
		t.Error(r)
	}
}

func TestSourceIsCounted(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package txn
type T[K any] struct { A, b int; C string; embedded }
type embedded struct{}
func (t *T[K]) Do() {}
func (t T[K]) do() {}
func (e embedded) Not() {}
func F() {}
var V, w int
const X = 1
`, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := source{public: map[string]int{}, types: map[string]size{}}
	s.add("txn", f)
	if s.exported != 7 || s.public["txn"] != 7 || s.types["txn.T"] != (size{4, 2}) {
		t.Errorf("%d exported names, %v", s.exported, s.types)
	}
}

// TestTreeIsCounted counts this package.
func TestTreeIsCounted(t *testing.T) {
	s, err := count(".")
	if err != nil || s.packages != 1 || s.files != 5 || s.lines < 300 || s.testLines < 50 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestProcessorTime reads that of this process.
func TestProcessorTime(t *testing.T) {
	if n, err := ticksOf([]string{"self"}); err != nil || n < 0 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := ticksOf([]string{"0"}); err == nil {
		t.Error("the time of no process")
	}
}
