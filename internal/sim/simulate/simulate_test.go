package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSeedRange(t *testing.T) {
	for text, want := range map[string]seedRange{"17": {17, 17}, "1-2000": {1, 2000}, "5-": {5, 0}} {
		var r seedRange
		if err := r.Set(text); err != nil || r != want || r.String() != text {
			t.Errorf("%q is %v, %q, error %v", text, r, r.String(), err)
		}
	}
	for _, text := range []string{"", "0", "x", "5-4", "-3", "1-x", "1--2"} {
		var r seedRange
		if err := r.Set(text); err == nil {
			t.Errorf("%q is %v", text, r)
		}
	}
}

// TestBadFlags: each has one line that names it, before anything is built.
func TestBadFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "-seeds is missing"},
		{"-seeds 1-", "has no end"},
		{"-seeds 1-9 -trace", "want one seed"},
		{"-seeds 1 more", `argument "more"`},
		{"-seeds 1 -kept /none", "/none"},
		{"-seeds 1 -binary here", "absolute path"},
		{"-seeds 1 -trace -table page", "-table page"},
		{"-seeds 1 -table /none/page", "-table: open /none/page"},
	} {
		if err := run(t.Context(), strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("simulate %s: %v, want %q", c.args, err, c.want)
		}
	}
}

// TestUnknownKind: a kind of cluster that the binary does not know is one line.
func TestUnknownKind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "binary")
	script := "#!/bin/sh\necho 'x_test.go:1: DRTMX_SIM_KIND=\"'$DRTMX_SIM_KIND'\", want this or that'\necho FAIL\nexit 1\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"-seeds", "1-200", "-kind", "none", "-binary", path})
	if want := `-kind "none": want this or that`; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestTable: the first run begins the page, each adds a row, and one that never began
// leaves nothing.
func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seeds.md")
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := newRuns(nil, &options{seeds: seedRange{31, 5000}, kind: "disk", jobs: 1})
	r.began, r.next, r.clusters, r.crashes, r.replayed, r.failed = began, 51, 20, 7, 2, []uint64{33}
	want := ""
	for _, interrupted := range []string{"never began", "", ", interrupted"} {
		p, err := openPage(path, "abc")
		if err != nil {
			t.Fatal(err)
		}
		if interrupted != "never began" {
			if err := p.add(r, began.Add(2*time.Minute), interrupted != ""); err != nil {
				t.Error(err)
			}
			if want == "" {
				want = tableHead
			}
			want += fmt.Sprintf("| 2026-01-02 03:06 | abc | %d processors, %s, 1 at a time | 31-50 disk%s | 20 | 7 | 10 | 2 | 0 | 33 |\n",
				runtime.NumCPU(), runtime.GOARCH, interrupted)
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
		if raw, err := os.ReadFile(path); string(raw) != want || (err != nil) != (want == "") {
			t.Errorf("%v, the page is\n%s\nwant\n%s", err, raw, want)
		}
	}
}

// TestPageOfOthers: a run that never began leaves a file that was there before it.
func TestPageOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := openPage(path, "abc")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestReadCases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(path, []byte("# none\n17\n18 storm # a remark\n\n19 disk 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readCases(path)
	if want := []simCase{{Seed: 17}, {Seed: 18, Kind: "storm"}, {Seed: 19, Kind: "disk", Order: 3}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if err := os.WriteFile(path, []byte("17\n18 storm x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readCases(path); err == nil || !strings.Contains(err.Error(), path+":2: ") {
		t.Errorf("a bad line: %v", err)
	}
	if _, err := readCases("../kept.txt"); err != nil {
		t.Error(err)
	}
}

// TestShrink: what is left of a case fails as the whole case did, and no part of it can
// be left out. Here it needs a and d, in some orders only once b is left out.
func TestShrink(t *testing.T) {
	all := []string{"a", "b", "c", "d", "e"}
	try := func(c simCase) (string, []string) {
		var left []string
		for _, p := range all {
			if !slices.Contains(c.Without, p) {
				left = append(left, p)
			}
		}
		switch has := func(p string) bool { return slices.Contains(left, p) }; {
		case !has("a") && has("d"):
			return "another reason", left
		case !has("a") || !has("d"), !has("b") && c.Order%3 != 2:
			return "", left
		}
		return "3 rows are lost\nmore", left
	}
	c, reason, parts, err := shrink(simCase{Seed: 7}, try)
	if err != nil || !slices.Equal(parts, []string{"a", "d"}) || c.Order != 2 || reason != "3 rows are lost\nmore" {
		t.Errorf("%+v %q %v, error %v", c, reason, parts, err)
	}
	if got := c.again(); got != "make sim SEED=7 ORDER=2 WITHOUT='e,c,b'" {
		t.Error(got)
	}
	if _, _, _, err := shrink(simCase{Seed: 8, Without: []string{"a"}}, func(simCase) (string, []string) { return "", nil }); err == nil {
		t.Error("a case that does not fail is made smaller")
	}
}

// TestSilentProcessIsKilled: a process that prints nothing for too long has a seed that
// does not end. One that prints now and then may take longer.
func TestSilentProcessIsKilled(t *testing.T) {
	for script, silent := range map[string]bool{
		"echo begun; exec sleep 600":                              true,
		"for i in 1 2 3 4 5; do echo $i; sleep 0.6; done; exit 3": false,
	} {
		b := &binary{path: filepath.Join(t.TempDir(), "server.test"), dir: t.TempDir(), silence: 2 * time.Second}
		if err := os.WriteFile(b.path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		x := b.process(t.Context(), simCase{Seed: 1}, 1)
		if x.err == nil || errors.Is(x.err, errSilent) != silent || x.other == "" {
			t.Errorf("%s: %v, and it printed %q", script, x.err, x.other)
		}
	}
}
