package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

var ctx = context.Background()

type row struct {
	key index.Key
	csn block.CSN
	row []uint64
}

// contents are what a test writes to a checkpoint.
type contents struct {
	info    Info
	indexes []Index
	rows    [][]row // of each index
	blobs   [][]byte
}

func draw(r *rng.Stream, rows int) *contents {
	c := &contents{info: Info{Log: r.Uint64n(1 << 40), Tick: clock.Tick(r.Uint64n(1 << 30))}}
	for i := range c.info.Identity {
		c.info.Identity[i] = byte(r.Uint64())
	}
	for i := range 4 {
		is := Index{Partition: placement.Partition(i / 2), Index: i % 2 * 7, Strings: i%2 > 0}
		list, num, csn := []row{}, r.Uint64(), r.Uint64n(1<<50)
		for range r.Intn(rows + 1) {
			e := row{row: make([]uint64, r.Intn(20))}
			for j := range e.row {
				e.row[j] = r.Uint64() >> r.Intn(65)
			}
			num += r.Uint64() >> r.Intn(64)
			csn += r.Uint64n(1000)
			e.csn = block.CSN(csn)
			if e.key = index.Num(num); is.Strings {
				e.key = index.Str(strings.Repeat("k", r.Intn(30)) + strconv.FormatUint(num, 36))
			}
			list = append(list, e)
		}
		is.Rows = uint64(len(list))
		c.indexes, c.rows = append(c.indexes, is), append(c.rows, list)
	}
	for range 3 {
		c.blobs = append(c.blobs, []byte(strings.Repeat("b", r.Intn(300))))
	}
	return c
}

// write writes the contents to the file system.
func (c *contents) write(fs vfs.FS) error {
	w, err := Create(fs, "", c.info, Options{})
	if err != nil {
		return err
	}
	if err := c.fill(w); err != nil {
		return errors.Join(err, w.Abort())
	}
	if _, _, err = w.Finish(ctx); err != nil {
		return errors.Join(err, w.Abort())
	}
	return nil
}

func (c *contents) fill(w *Writer) error {
	for i, is := range c.indexes {
		if err := w.Index(ctx, is.Partition, is.Index, is.Strings); err != nil {
			return err
		}
		for _, r := range c.rows[i] {
			w.Row(&index.Entry{Key: r.key, Header: block.Present(r.csn), Row: r.row})
			if err := w.Flush(ctx); err != nil {
				return err
			}
		}
		if i < len(c.blobs) {
			if err := w.Blob(ctx, uint16(i%2), placement.Partition(i), c.blobs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// check reads a checkpoint and compares it with the contents.
func (c *contents) check(f *File) error {
	total := uint64(0)
	var indexes []Index
	for i, is := range c.indexes {
		total += is.Rows
		if is.Rows > 0 {
			indexes = append(indexes, is)
		}
		at := 0
		err := f.Read(is.Partition, is.Index, func(e *index.Entry) error {
			if at == len(c.rows[i]) {
				return fmt.Errorf("index %d: too many rows", i)
			}
			want := c.rows[i][at]
			if e.Key != want.key || e.Header != block.Present(want.csn) || !slices.Equal(e.Row, want.row) {
				return fmt.Errorf("index %d, row %d: %v %v %x, want %v", i, at, e.Key, e.Header, e.Row, want)
			}
			at++
			return nil
		})
		if err != nil || at != len(c.rows[i]) {
			return fmt.Errorf("index %d, %d of %d rows: %w", i, at, len(c.rows[i]), err)
		}
	}
	for kind := range uint16(2) {
		at := int(kind)
		err := f.Blobs(kind, func(p placement.Partition, b []byte) error {
			if int(p) != at || !bytes.Equal(b, c.blobs[at]) {
				return fmt.Errorf("blob of partition %d: %q, want %q of %d", p, b, c.blobs[at], at)
			}
			at += 2
			return nil
		})
		if err != nil || at < len(c.blobs) {
			return fmt.Errorf("blobs of kind %d up to %d: %w", kind, at, err)
		}
	}
	if f.Info != c.info || f.Rows != total || !slices.Equal(f.Indexes, indexes) {
		return fmt.Errorf("%+v, %d rows of %v; want %+v, %d rows of %v", f.Info, f.Rows, f.Indexes, c.info, total, indexes)
	}
	return nil
}

func openAndVerify(fs vfs.FS, name string) error {
	f, err := Open(fs, name)
	if err != nil {
		return err
	}
	return errors.Join(f.Verify(), f.Close())
}

func TestRoundTrip(t *testing.T) {
	seed := testseed.Of(t)
	for i := range uint64(60) {
		c, fs := draw(rng.New(seed+i), 2000), vfs.NewMem()
		if err := c.write(fs); err != nil {
			t.Fatal(err)
		}
		f, err := Open(fs, Name(c.info.Log))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.check(f), f.Verify(), f.Close()); err != nil {
			t.Fatalf("seed %d: %v", seed+i, err)
		}
	}
}

// put makes a file of the bytes.
func put(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(slices.Clone(b))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDamageIsFound changes every byte of a checkpoint, ends it everywhere, and
// adds to it.
func TestDamageIsFound(t *testing.T) {
	c, fs := draw(rng.New(testseed.Of(t)), 60), vfs.NewMem()
	if err := c.write(fs); err != nil {
		t.Fatal(err)
	}
	whole := get(t, fs, Name(c.info.Log))
	found := func(what string, at int, b []byte) {
		put(t, fs, "damaged", b)
		err := openAndVerify(fs, "damaged")
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.File != "damaged" || corrupt.Offset < 0 || corrupt.Offset > int64(len(b)) {
			t.Fatalf("%s %d of %d bytes: %v", what, at, len(whole), err)
		}
	}
	for i := range whole {
		b := slices.Clone(whole)
		for _, x := range []byte{1, 0x80, 0xff} {
			b[i] = whole[i] ^ x
			found("change of byte", i, b)
		}
		found("end at byte", i, whole[:i])
	}
	found("more after byte", len(whole), append(slices.Clone(whole), 0))
	found("more after byte", len(whole), append(slices.Clone(whole), whole...))
	t.Logf("%d bytes", len(whole))
}

// TestBlocksOfAnotherFile puts blocks of one checkpoint, checksums and all, into
// another.
func TestBlocksOfAnotherFile(t *testing.T) {
	seed := testseed.Of(t)
	c, fs := draw(rng.New(seed), 60), vfs.NewMem()
	if err := c.write(fs); err != nil {
		t.Fatal(err)
	}
	whole := get(t, fs, Name(c.info.Log))
	c.info.Log++
	if err := c.write(fs); err != nil {
		t.Fatal(err)
	}
	other := get(t, fs, Name(c.info.Log))
	for _, b := range [][]byte{
		append(slices.Clone(whole[:headBytes]), other[headBytes:]...),
		append(slices.Clone(whole[:len(whole)-trailerBytes]), other[len(whole)-trailerBytes:]...),
	} {
		put(t, fs, "mixed", b)
		var corrupt *CorruptError
		if err := openAndVerify(fs, "mixed"); !errors.As(err, &corrupt) {
			t.Fatalf("blocks of two checkpoints were read: %v", err)
		}
	}
}

func TestOtherVersion(t *testing.T) {
	c, fs := draw(rng.New(testseed.Of(t)), 10), vfs.NewMem()
	if err := c.write(fs); err != nil {
		t.Fatal(err)
	}
	b := get(t, fs, Name(c.info.Log))
	le.PutUint32(b[8:], Version+1)
	le.PutUint32(b[12:], crc32.Checksum(b[:12], castagnoli))
	put(t, fs, "later", b)
	var version *VersionError
	if err := openAndVerify(fs, "later"); !errors.As(err, &version) || version.Got != Version+1 {
		t.Fatal(err)
	}
}

// TestCrashes crashes the file system at every operation of a checkpoint and
// after it. A checkpoint that has its name is complete, and one that is finished
// is there.
func TestCrashes(t *testing.T) {
	seed := testseed.Of(t)
	r := rng.New(seed)
	c := draw(r, 3000)
	for _, unsynced := range []int{0, 50, 100} {
		disk := vfstest.NewCrashableMem()
		crashes, done := 0, false
		crash := func(op string) {
			crashes++
			fs := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rand.New(rand.NewPCG(seed, uint64(crashes)))})
			logs, err := List(fs, "")
			if err != nil {
				t.Fatal(err)
			}
			if done && len(logs) == 0 {
				t.Fatalf("crash %d, %d%%: a checkpoint that was finished is gone", crashes, unsynced)
			}
			for _, log := range logs {
				f, err := Open(fs, Name(log))
				if err == nil {
					err = errors.Join(c.check(f), f.Close())
				}
				if err != nil {
					t.Fatalf("crash %d at %s, %d%%: %v", crashes, op, unsynced, err)
				}
			}
		}
		if err := c.write(errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error { crash(fmt.Sprint(op)); return nil }))); err != nil {
			t.Fatal(err)
		}
		done = true
		crash("the end")
		t.Logf("%d crashes", crashes)
	}
}

// TestFaults lets every operation fail in turn: nothing is left behind, and
// nothing is there that is not complete.
func TestFaults(t *testing.T) {
	c := draw(rng.New(testseed.Of(t)), 3000)
	broken := errors.New("broken")
	for n, ok := 0, false; !ok; n++ {
		fs, at := vfs.NewMem(), 0
		err := c.write(errorfs.Wrap(fs, errorfs.InjectorFunc(func(errorfs.Op) error {
			if at++; at == n+1 {
				return broken
			}
			return nil
		})))
		if ok = err == nil; !ok && !errors.Is(err, broken) {
			t.Fatalf("operation %d: %v", n, err)
		}
		logs, lerr := List(fs, "")
		if lerr != nil {
			t.Fatal(lerr)
		}
		for _, log := range logs {
			if err := openAndVerify(fs, Name(log)); err != nil {
				t.Fatalf("operation %d: %v", n, err)
			}
		}
		if err := Clean(fs, "", c.info.Log); err != nil {
			t.Fatal(err)
		}
		if names, _ := fs.List(""); len(names) > len(logs) {
			t.Fatalf("operation %d: %q left", n, names)
		}
		if ok {
			t.Logf("%d operations", n)
		}
	}
}

func TestRate(t *testing.T) {
	fs := vfs.NewMem()
	const rate = 4 << 20
	start := time.Now() // a writer that begins late has missed something
	w, err := Create(fs, "", Info{}, Options{BytesPerSecond: rate})
	if err != nil {
		t.Fatal(err)
	}
	for _, late := range []time.Duration{0, 100 * time.Millisecond} { // what a late writer has missed it does not write at once
		if time.Sleep(late); late > 0 {
			start = time.Now()
		}
		for range 8 {
			if err := w.Blob(ctx, 0, 0, make([]byte, 64<<10)); err != nil {
				t.Fatal(err)
			}
		}
		least := time.Second * (8 * 64 << 10) / rate
		if late > 0 {
			least -= lateMax
		}
		if took := time.Since(start); took < least {
			t.Errorf("took %v, want at least %v", took, least)
		}
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if err := w.Blob(stopped, 0, 0, make([]byte, 64<<20)); !errors.Is(err, context.Canceled) {
		t.Errorf("a writer that is stopped: %v", err)
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
	if names, _ := fs.List(""); len(names) > 0 {
		t.Errorf("%q left", names)
	}
}

func TestListAndClean(t *testing.T) {
	fs := vfs.NewMem()
	for _, name := range []string{Name(7), Name(1 << 60), Name(300), Name(400) + temporary, "checkpoint-7", "LOCK"} {
		put(t, fs, name, nil)
	}
	if logs, err := List(fs, ""); err != nil || !slices.Equal(logs, []uint64{1 << 60, 300, 7}) {
		t.Fatalf("%d, %v", logs, err)
	}
	if err := Clean(fs, "", 300); err != nil {
		t.Fatal(err)
	}
	names, err := fs.List("")
	slices.Sort(names)
	if want := []string{"LOCK", Name(300), Name(1 << 60), "checkpoint-7"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("%q, want %q, %v", names, want, err)
	}
}

// FuzzRows decodes a block of rows without its checksum.
func FuzzRows(f *testing.F) {
	c := draw(rng.New(1), 40)
	for i, is := range c.indexes {
		var prev coder
		var b []byte
		for _, r := range c.rows[i] {
			b = prev.append(b, is.Strings, r.key, r.csn, r.row)
		}
		f.Add(b, is.Strings)
	}
	f.Fuzz(func(t *testing.T, b []byte, strs bool) {
		r, again := rowReader{b: b, strs: strs}, rowReader{strs: strs}
		var e, e2 index.Entry
		for len(r.b) > 0 && r.next(&e) {
			if len(e.Key.Str) > index.MaxKeyBytes || len(e.Row) > 2*len(b) {
				t.Fatalf("key of %d bytes, row of %d words", len(e.Key.Str), len(e.Row))
			}
			was := again.coder
			was.str = slices.Clone(was.str)
			again.b = was.append(nil, strs, e.Key, e.Header.CSN(), e.Row)
			if !again.next(&e2) || e2.Key != e.Key || e2.Header != e.Header || !slices.Equal(e2.Row, e.Row) || len(again.b) > 0 {
				t.Fatalf("%v became %v", e, e2)
			}
		}
	})
}

// FuzzFile opens any bytes that have the checksums of a checkpoint.
func FuzzFile(f *testing.F) {
	c, fs := draw(rng.New(1), 10), vfs.NewMem()
	if err := c.write(fs); err != nil {
		f.Fatal(err)
	}
	file, err := Open(fs, Name(c.info.Log))
	if err != nil {
		f.Fatal(err)
	}
	var table []byte
	for _, fr := range file.blocks {
		table = fr.append(table)
	}
	f.Add(table, int64(headBytes), uint64(0))
	f.Fuzz(func(t *testing.T, table []byte, footer int64, rows uint64) {
		f := File{Rows: rows}
		if err := f.readTable(table, footer); err == nil {
			at := int64(headBytes)
			for _, fr := range f.blocks {
				if fr.offset != at {
					t.Fatalf("block at %d, want %d", fr.offset, at)
				}
				at += frameBytes + int64(fr.bytes)
			}
			if at != footer {
				t.Fatalf("blocks end at %d, not %d", at, footer)
			}
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	r := rng.New(1)
	words := make([]uint64, 12)
	for i := range words {
		words[i] = r.Uint64() >> (8 * r.Intn(8))
	}
	const rows = 1000
	encode := func(buf []byte) []byte {
		var prev coder
		for i := range uint64(rows) {
			buf = prev.append(buf, false, index.Num(i*7), block.CSN(1<<40+i), words)
		}
		return buf
	}
	enc := encode(nil)
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			enc = encode(enc[:0])
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
		b.ReportMetric(float64(len(enc))/rows, "bytes/row")
	})
	b.Run("decode", func(b *testing.B) {
		var e index.Entry
		var rd rowReader
		for b.Loop() {
			rd = rowReader{b: enc, row: rd.row}
			for range rows {
				if !rd.next(&e) {
					b.Fatal("not decoded")
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
	})
}
