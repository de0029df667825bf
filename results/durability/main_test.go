package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childCommand {
		if err := child(context.Background(), os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestMeasures runs the sections that need no programs, small.
func TestMeasures(t *testing.T) {
	o, err := parse([]string{"-quick", "-dir", t.TempDir(), "-sections", "postgres,checkpoints,recovery"})
	if err != nil {
		t.Fatal(err)
	}
	o.rows, o.stored, o.beside, o.progress = 1000, 100, 100*time.Millisecond, io.Discard
	var out strings.Builder
	if err := o.measure(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Not measured: no PostgreSQL", "| without pause |", "| paced |", "| hash | 8 | log | one |", "| ordered | 64 | checkpoint | all |", "syncs a second."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "NaN") {
		t.Errorf("nothing was counted:\n%s", &out)
	}
	if left, err := os.ReadDir(o.dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// TestTablesAreMediansOfPairs prints a cell with known figures.
func TestTablesAreMediansOfPairs(t *testing.T) {
	c := &cell{name: "A", clients: 8}
	for _, rates := range [][2]float64{{100, 80}, {200, 100}, {100, 90}} {
		for mode, rate := range rates {
			c.runs[mode] = append(c.runs[mode], outcome{rate: rate, logged: logged{log: 110, rows: 100, records: 30, syncs: 10}})
		}
	}
	var out strings.Builder
	printRates(&out, []*cell{c, {name: "C", clients: 1, runs: [2][]outcome{{{rate: 1}}, {{rate: 1}}}}})
	for _, want := range []string{"| A | 8 | 100 | 90 | **0.80 (0.50 to 0.90)** | ≥ 0.85 | 3.0 | **1.10** | ≤ 1.3 |", "| C | 1 | 1 | 1 | **1.00 (1.00 to 1.00)** | ≥ 0.99 |  |  |  |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range []string{"", "-dir x y", "-dir x -sections ycsb,nothing", "-nothing"} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// TestSummariesOfGoTPC reads lines as go-tpc prints them.
func TestSummariesOfGoTPC(t *testing.T) {
	const line = "[Current] DELIVERY - Takes(s): 1.0, Count: 9, TPM: 1.0\n[Summary] DELIVERY - Takes(s): 4.9, Count: 37, TPM: 451.6, Sum(ms): 1.0\n[Summary] NEW_ORDER_ERR - Takes(s): 4.9, Count: 1, TPM: 12.0"
	got := summary.FindAllStringSubmatch(line, -1)
	if len(got) != 2 || got[0][3] != "451.6" || got[1][1] != "NEW_ORDER_ERR" {
		t.Errorf("%q", got)
	}
}
