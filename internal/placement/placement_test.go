package placement

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestSpread(t *testing.T) {
	m := Spread(7, 3)
	if b, err := json.Marshal(m); err != nil || string(b) != "[0,1,2,0,1,2,0]" {
		t.Errorf("%s, %v", b, err)
	}
	if err := m.Check(3); err != nil || m.Partitions() != 7 {
		t.Errorf("%d partitions, %v", m.Partitions(), err)
	}
	for s, want := range [][]Partition{{0, 3, 6}, {1, 4}, {2, 5}, nil} {
		if got := slices.Collect(m.Of(Server(s))); !slices.Equal(got, want) {
			t.Errorf("server %d has partitions %v, want %v", s, got, want)
		}
	}
}

func TestPrimary(t *testing.T) {
	m := Spread(3, 2)
	for p, want := range map[Partition]Server{-1: -1, 0: 0, 1: 1, 2: 0, 3: -1} {
		got, ok := m.Primary(p)
		if ok != (want >= 0) || ok && (got != want || m.At(p) != want) {
			t.Errorf("partition %d is at server %d, %t", p, got, ok)
		}
	}
	if _, ok := (Map{}).Primary(0); ok {
		t.Error("the zero Map has a partition")
	}
}

func TestNew(t *testing.T) {
	primaries := []Server{1, 0, 1}
	m, err := New(primaries, 2)
	primaries[0] = 0
	if err != nil || m.At(0) != 1 {
		t.Errorf("partition 0 is at server %d, %v", m.At(0), err)
	}
	for want, bad := range map[string][]Server{
		"no partitions": {},
		"partition 1 is at server 2, want 0 to 1":  {0, 2},
		"partition 2 is at server -1, want 0 to 1": {0, 1, -1},
	} {
		if _, err := New(bad, 2); err == nil || err.Error() != want {
			t.Errorf("%v: error %v, want %s", bad, err, want)
		}
	}
}

func TestDecodingSharesNothing(t *testing.T) {
	m := Spread(2, 2)
	was := m
	if err := json.Unmarshal([]byte("[1,1]"), &m); err != nil || m.At(0) != 1 || was.At(0) != 0 {
		t.Errorf("partition 0 is at server %d, and was at %d, %v", m.At(0), was.At(0), err)
	}
}

// FuzzDecode: what decodes and passes Check has a server of the cluster for every
// partition, and one encoding. Every other error names a partition, or is json's.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"[0,1,2,0]", "[3]", "[-1]", "[]", "null", "[1.5]", `["0"]`, "{}", "[9223372036854775808]", "[0"} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, servers int) {
		var m Map
		if json.Unmarshal(b, &m) != nil {
			return
		}
		if err := m.Check(servers); err != nil {
			var p, s, most int
			if n, _ := fmt.Sscanf(err.Error(), "partition %d is at server %d, want 0 to %d", &p, &s, &most); n == 3 {
				if got, ok := m.Primary(Partition(p)); !ok || int(got) != s || s >= 0 && s <= most {
					t.Errorf("%s: %v", b, err)
				}
			} else if m.Partitions() > 0 || !strings.Contains(err.Error(), "no partitions") {
				t.Errorf("%s: %v", b, err)
			}
			return
		}
		held := 0
		for p := range Partition(m.Partitions()) {
			s, ok := m.Primary(p)
			if !ok || s < 0 || int(s) >= servers || !slices.Contains(slices.Collect(m.Of(s)), p) {
				t.Errorf("%s: partition %d is at server %d of %d", b, p, s, servers)
			}
			held++
		}
		again, err := json.Marshal(m)
		var same Map
		if err != nil || json.Unmarshal(again, &same) != nil || !slices.Equal(m.primaries, same.primaries) || held == 0 {
			t.Errorf("%s becomes %s, %v", b, again, err)
		}
	})
}
