package history

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"drtmx/internal/testseed"
)

func sampleLogs(seed uint64, txns int) []*Log {
	s := sim{
		r: rand.New(rand.NewPCG(seed, 1)), processes: 3, overlap: 100, aborts: 0.1, unknowns: 0.1,
		reading: snapshotReads{share: 0.3, stale: 1 << 20},
		gen:     Generator{Seed: seed, Keys: 5, ReadFraction: 0.3, ScanFraction: 0.2, DeleteFraction: 0.05, RotateAfter: 5},
	}
	return s.run(txns)
}

func sameTxns(t *testing.T, got, want *History) {
	t.Helper()
	g, w := slices.Collect(got.All()), slices.Collect(want.All())
	if len(g) != len(w) {
		t.Fatalf("%d transactions, want %d", len(g), len(w))
	}
	for i := range g {
		if !reflect.DeepEqual(g[i], w[i]) {
			t.Fatalf("transaction %d is\n%v, want\n%v", i, &g[i], &w[i])
		}
	}
}

func TestSaveLoad(t *testing.T) {
	want := mustMerge(t, sampleLogs(testseed.Of(t), 500))
	path := filepath.Join(t.TempDir(), "history")
	for range 2 { // the second time it replaces the file
		if err := want.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	sameTxns(t, got, want)
	files, _ := os.ReadDir(filepath.Dir(path))
	if len(files) != 1 {
		t.Errorf("Save left %v", files)
	}
	if err := want.Save(filepath.Join(path, "x")); err == nil {
		t.Error("saved beneath a file")
	}
	if _, err := Load(path, filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("loading a missing file: %v", err)
	}
}

// Flushing while recording gives the same history as keeping everything.
func TestFlush(t *testing.T) {
	whole, flushed := NewRecorder(7), NewRecorder(7)
	var file bytes.Buffer
	r := rand.New(rand.NewPCG(testseed.Of(t), 2))
	var list []Value
	for i := range Value(300) {
		list = append(list, i)
		for _, rec := range []*Recorder{whole, flushed} {
			id := rec.Begin(int64(i) * 10)
			if id != MakeTxnID(7, uint32(i)+1) {
				t.Fatalf("transaction %d is %v", i, id)
			}
			rec.Read(Key(i%3)+100, nil)
			rec.Restart()
			rec.Append(x, i)
			rec.Scan(x, z, []Row{{x, list}})
			rec.End(Committed, int64(i)*10+5)
		}
		if r.IntN(20) == 0 {
			if err := flushed.Flush(&file); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := flushed.Flush(&file); err != nil {
		t.Fatal(err)
	}
	l, err := ReadLog(&file)
	if err != nil {
		t.Fatal(err)
	}
	got := mustMerge(t, []*Log{l})
	sameTxns(t, got, mustMerge(t, []*Log{whole.Log()}))
	mustBeLegal(t, got)
}

// A file cut anywhere yields its whole blocks; a changed byte is noticed.
func TestDamagedFiles(t *testing.T) {
	rec := NewRecorder(1)
	var file bytes.Buffer
	ends := map[int]int{len(fileMagic): 0}
	for i := range 4 {
		rec.Begin(int64(i))
		rec.Append(x, Value(i))
		rec.End(Committed, int64(i))
		if err := rec.Flush(&file); err != nil {
			t.Fatal(err)
		}
		ends[file.Len()] = i + 1
	}
	whole := file.Bytes()
	blocks := 0
	for n := range len(whole) + 1 {
		want, atEnd := ends[n]
		if atEnd {
			blocks = want
		}
		l, err := ReadLog(bytes.NewReader(whole[:n]))
		if atEnd != (err == nil) || !atEnd && !errors.Is(err, ErrTruncated) {
			t.Errorf("cut at %d: %v", n, err)
		}
		if l == nil || l.Len() != blocks {
			t.Errorf("cut at %d: %v, want %d transactions", n, l, blocks)
		}
	}
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 0x10
		if _, err := ReadLog(bytes.NewReader(bad)); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrTruncated) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	path := filepath.Join(t.TempDir(), "torn")
	if err := os.WriteFile(path, whole[:len(whole)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if h, err := Load(path); !errors.Is(err, ErrTruncated) || h.Len() != 3 {
		t.Errorf("loading a torn file: %v", err)
	}
}

type failingIO struct{ err error }

func (f failingIO) Read([]byte) (int, error)  { return 0, f.err }
func (f failingIO) Write([]byte) (int, error) { return 0, f.err }

func TestFailingReaderAndWriter(t *testing.T) {
	broken := failingIO{errors.New("broken")}
	if _, err := ReadLog(broken); !errors.Is(err, broken.err) {
		t.Errorf("reading: %v", err)
	}
	rec := NewRecorder(1)
	if err := rec.Flush(broken); !errors.Is(err, broken.err) {
		t.Errorf("flushing: %v", err)
	}
	if err := rec.Log().Write(broken); !errors.Is(err, broken.err) {
		t.Errorf("writing: %v", err)
	}
}

func TestRecorderMisusePanics(t *testing.T) {
	for name, f := range map[string]func(r *Recorder){
		"append outside": func(r *Recorder) { r.Append(x, 1) },
		"read outside":   func(r *Recorder) { r.Read(x, nil) },
		"end outside":    func(r *Recorder) { r.End(Committed, 0) },
		"begin twice":    func(r *Recorder) { r.Begin(0); r.Begin(0) },
		"log within":     func(r *Recorder) { r.Begin(0); r.Log() },
		"flush within":   func(r *Recorder) { r.Begin(0); _ = r.Flush(nil) },
		"stale before":   func(r *Recorder) { r.Begin(0); r.Snapshot(-1) },
		"outcome":        func(r *Recorder) { r.Begin(0); r.End(outcomeCount, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f(NewRecorder(1))
		}()
	}
}

// FuzzReadLog feeds payloads past the checksum, which an attacker can compute.
// Whatever they hold, reading neither fails untyped nor allocates much, and what
// it accepts can be merged, checked, and written again.
func FuzzReadLog(f *testing.F) {
	for i := range uint64(3) {
		var buf bytes.Buffer
		if err := sampleLogs(i, int(i)*20)[0].Write(&buf); err != nil {
			f.Fatal(err)
		}
		f.Add(buf.Bytes()[min(buf.Len(), len(fileMagic)+blockHeaderSize):])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		l := &Log{tables{nodes: make([]node, 1)}}
		d := decoder{tables: &l.tables}
		if err := d.payload(payload); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if n := len(l.nodes) + len(l.ops) + len(l.txns); n > 1+len(payload) {
			t.Fatalf("%d entries of %d bytes", n, len(payload))
		}
		h, err := Merge(l)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if _, err := Check(h, Options{}); err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("untyped error %v", err)
		}
		var buf bytes.Buffer
		if err := h.Write(&buf); err != nil {
			t.Fatal(err)
		}
		again, err := ReadLog(&buf)
		if err != nil {
			t.Fatal(err)
		}
		sameTxns(t, mustMerge(t, []*Log{again}), h)
	})
}
