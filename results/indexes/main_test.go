package main

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"drtmx/internal/keysets"
)

func TestFlagsAreChecked(t *testing.T) {
	for args, names := range map[string]string{
		"":                          "-dir",
		"-dir d x":                  `"x"`,
		"-dir d -keys 5":            "-keys 5:",
		"-dir d -turns -1":          "-turns -1:",
		"-dir d -sets uniform,none": "-sets uniform,none:",
		"-nothing":                  "-nothing",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%q: error %v, want one that has %s", args, err, names)
		}
	}
	o, err := parse(strings.Fields("-dir d -quick -sets tpcc,uniform"), io.Discard)
	if err != nil || o.keys != 200_000 || o.turns != 3 || o.scans != 10_000 || len(o.sets) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = parse(strings.Fields("-dir d"), io.Discard); err != nil || o.keys != 10_000_000 || o.gets != 1_000_000 || len(o.sets) != len(keysets.All) {
		t.Errorf("%+v, %v", o, err)
	}
}

// The sections of a file have each key once among those that are loaded and inserted,
// and only such keys are looked up. A scan from each start has enough rows.
func TestKeys(t *testing.T) {
	const n = 20_000
	s, err := sections(keysets.All[0], n, 500, 50)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Sorted(slices.Values(slices.Concat(s[0], s[1])))
	if len(all) != n || len(slices.Compact(slices.Clone(all))) != n || !slices.IsSorted(s[0]) || slices.IsSorted(s[1]) {
		t.Errorf("%d keys, of which %d are loaded", len(all), len(s[0]))
	}
	has := func(keys []uint64, k uint64) bool {
		_, ok := slices.BinarySearch(keys, k)
		return ok
	}
	for i, want := range []int{2: 500, 3: 500, 4: 50} {
		if i < 2 {
			continue
		}
		if len(s[i]) != want {
			t.Errorf("section %d has %d keys, want %d", i, len(s[i]), want)
		}
		for _, k := range s[i] {
			if !has(all, k) || i != 3 && !has(s[0], k) {
				t.Fatalf("section %d has key %d, which is not there", i, k)
			}
			if at, _ := slices.BinarySearch(s[0], k); i == 4 && at+rowsOfScan > len(s[0]) {
				t.Fatalf("the scan from %d has too few rows", k)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := writeKeys(path, s); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || len(raw) != 8*(5+n+1050) || binary.LittleEndian.Uint64(raw) != uint64(len(s[0])) || binary.LittleEndian.Uint64(raw[8:]) != s[0][0] {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	if _, err := sections(keysets.All[0], 100, 1, 1); err == nil {
		t.Error("no error for a set that is too small")
	}
}

// Peers are pinned, and their programs and headers are there.
func TestPeers(t *testing.T) {
	for _, p := range peers {
		if !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(p.commit) || !strings.HasPrefix(p.url, "https://") || p.licence == "" || p.what == "" {
			t.Errorf("%s is not pinned: %+v", p.name, p)
		}
		source, err := os.ReadFile(filepath.Join("peers", p.program+".cc"))
		if err != nil || !strings.Contains(string(source), `name = "`+p.name+`"`) {
			t.Errorf("%s: the program prints another name: %v", p.name, err)
		}
		args := strings.Join(p.compilation("/src", "/checkout", "/out"), " ")
		if strings.ContainsAny(args, "@!") || !strings.Contains(args, "-I/checkout") || !strings.HasSuffix(args, "-o /out") {
			t.Errorf("%s: g++ %s", p.name, args)
		}
	}
}

// A fetch gives the pinned commit, also from the cache, or an error.
func TestFetch(t *testing.T) {
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	from, cache, ctx := t.TempDir(), t.TempDir(), context.Background()
	git := func(args ...string) string {
		out, err := output(ctx, from, nil, "git", append([]string{"-c", "user.name=x", "-c", "user.email=x@y.z"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	git("init", "-q")
	if err := os.WriteFile(filepath.Join(from, "index.h"), []byte("// an index\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "-q", "-m", "an index")
	p := &peer{program: "p", url: "file://" + from, commit: git("rev-parse", "HEAD")}
	for range 2 {
		dir, err := p.fetch(ctx, cache)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "index.h")); err != nil {
			t.Error(err)
		}
		p.url = "file:///nowhere" // the cache has it
	}
	if _, err := (&peer{program: "q", url: "file://" + from, commit: strings.Repeat("1", 40)}).fetch(ctx, cache); err == nil {
		t.Error("no error for an unknown commit")
	}
	if _, err := (&peer{program: "r", url: "file:///nowhere", commit: p.commit}).build(ctx, ".", cache, cache); err == nil || !strings.HasPrefix(err.Error(), "could not fetch file:///nowhere: ") {
		t.Errorf("%v", err)
	}
}

func TestTables(t *testing.T) {
	o, err := parse(strings.Fields("-dir d -quick -sets uniform"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := &tables{options: o, got: map[string]map[string]measured{"uniform": {}}, failed: map[string]string{"XIndex": "could not fetch it"}}
	for turn := range 3 {
		f := float64(turn)
		if !s.add("uniform", turn, "goos: linux\nBenchmarkPeers/server-2 \t 1\t 7451 ns/op\t 100 get:grown:1\t 300.5 scan:grown:1\nPASS\n") ||
			!s.add("uniform", turn, "\x1b[0m\nBenchmarkPeer/ALEX 1 "+number(map[int]float64{0: 200 + 50*f})+" get:grown:1 0.000 wrong:grown:1 150 scan:grown:1\n") ||
			!s.add("uniform", turn, "BenchmarkPeer/FINEdex 1 50 get:grown:1 100 wrong:grown:1 20 scan:grown:1\n") {
			t.Fatal("no figures")
		}
	}
	if s.add("uniform", 0, "PASS\n") {
		t.Error("figures in nothing")
	}
	var b strings.Builder
	if err := s.print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| **drtmx, server** | 100 | – | 300 |", "| ALEX | 250 | – | 150 |", "| FINEdex | 50.0 | – | 100 % wrong |",
		"| ALEX | 0.40 (0.33 to 0.50) | – | 2.00 (2.00 to 2.00) |", "| FINEdex | 2.00 (2.00 to 2.00) | – | – |",
		"- XIndex: not measured: could not fetch it", "commit 4370da6aa8b5",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	if v := s.ratiosOf("uniform", "server", "ALEX", "get:grown:1"); len(v) != 3 || math.Abs(v[2]-1.0/3) > 1e-9 {
		t.Errorf("%v", v)
	}
}
