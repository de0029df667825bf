package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childCommand {
		if err := runChild(context.Background()); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestMeasures runs a small matrix and looks for all of its rows.
func TestMeasures(t *testing.T) {
	o, err := parse(strings.Fields("-short -rows 300,500 -servers 1,2 -writers 2 -systems drtmx,nothing -updates 1"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := measure(t.Context(), o, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"| drtmx | 300 | 1 | 2 | snapshot |", "| drtmx | 500 | 2 | 2 | view |"} {
		if strings.Count(out.String(), row) != 2 {
			t.Errorf("want two lines that begin with %q in\n%s", row, &out)
		}
	}
	if !strings.Contains(out.String(), "nothing, 300 rows: failed: no store") {
		t.Errorf("no word of a store that is missing in\n%s", &out)
	}
	if !strings.Contains(out.String(), "| drtmx | view | 4 | **") {
		t.Errorf("no medians of four cells in\n%s", &out)
	}
	if strings.Contains(out.String(), "NaN") {
		t.Errorf("nothing was counted:\n%s", &out)
	}
}

// wrong is a store whose reader misses a row.
type wrong struct{ store }

func (wrong) reader(context.Context, string) (*reader, error) {
	return &reader{
		read:  func(context.Context, string) (int64, int, error) { return 9 * balance, 9, nil },
		close: func() error { return nil },
	}, nil
}

func TestWrongTotalsAreErrors(t *testing.T) {
	c := &cell{store: wrong{}, rows: 10, writers: 1, plan: plan{window: time.Millisecond, pairs: 1, paced: 1}}
	if _, err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "want 10 with 1000") {
		t.Fatalf("a reader that misses a row: %v", err)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range []string{"-rows 1", "-writers 0", "-servers x"} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
	if _, err := parse([]string{"-nothing"}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("an unknown flag: %v", err)
	}
}

// TestMedians makes medians of a table with known figures.
func TestMedians(t *testing.T) {
	row := func(kept string, cpu, paced float64) string {
		return fmt.Sprintf("| drtmx | 30000 | 1 | 8 | view | 3 | 4 | 5 | **%s** | 0.76–1.34 | 20.3 | 22.5 | %.2f | 0.0 | 0.0 | 21061 | 100.0 %% | **%.1f %%** | 7.5 | 9.9 |\n", kept, cpu, paced)
	}
	page := "| a | b |\n" + row("0.90", 1.1, 94) + row("1.10", 0.9, 99) + row("1.00", 1, 99) + row("1.06", 1.04, 100)
	var out strings.Builder
	if err := printMedians(strings.NewReader(page), &out); err != nil {
		t.Fatal(err)
	}
	if want := "| drtmx | view | 4 | **1.030** | 0.90 | 1.10 | 1 | 1.020 | 100.0 % | 0 | **99.0 %** | 1 |"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, &out)
	}
}
