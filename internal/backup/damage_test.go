package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drtmx/internal/image"
	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// files reads a directory.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	names, err := vfs.Default.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, name := range names {
		f, err := vfs.Default.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if all[name], err = io.ReadAll(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	return all
}

func writeFile(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(bytes.Clone(b)) // with the tag invariants, it is changed
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// named reports whether an error names a damaged file, and an offset no later than
// the damage: that of what it is part of.
func named(err error, file string, at int) bool {
	var ours *CorruptError
	var theirs *image.CorruptError
	switch {
	case errors.As(err, &ours):
		return strings.HasSuffix(ours.File, file) && 0 <= ours.Offset && ours.Offset <= int64(at)
	case errors.As(err, &theirs):
		return strings.HasSuffix(theirs.File, file) && 0 <= theirs.Offset && theirs.Offset <= int64(at)
	}
	return false
}

// TestDamage: a byte that is changed, anywhere, is found, and so is a file that is
// cut or missing. The error names the file.
func TestDamage(t *testing.T) {
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	w := openWorld(t, t.TempDir(), 2, 2, nil)
	defer w.cl.Close()
	w.load()
	w.write(seed)
	dir := filepath.Join(t.TempDir(), "b")
	o := w.options(dir)
	o.For, o.Follow = 150*time.Millisecond, true
	_, err := Run(t.Context(), o)
	w.end()
	if err != nil {
		t.Fatal(err)
	}
	all := files(t, dir)
	if len(all) != 5 {
		t.Fatalf("%d files", len(all))
	}
	fs := vfs.NewMem()
	for name, b := range all {
		writeFile(t, fs, name, b)
	}
	if _, err := Verify(fs, "", nil); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for name, b := range all {
		try := func(what string, at int, damaged []byte) {
			writeFile(t, fs, name, damaged)
			if _, err := Verify(fs, "", nil); !named(err, name, at) {
				t.Errorf("%s, %s of %d bytes: %v", name, what, len(b), err)
			}
			tried++
		}
		for _, at := range positions(r, len(b)) {
			damaged := append([]byte(nil), b...)
			damaged[at] ^= 1 << r.IntN(8)
			try(fmt.Sprintf("byte %d", at), at, damaged)
		}
		for _, at := range []int{0, 1, len(b) / 3, len(b) - 1} {
			try(fmt.Sprintf("cut at %d", at), at, b[:at])
		}
		if err := fs.Remove(name); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(fs, "", nil); err == nil {
			t.Errorf("%s is missing, and nothing is said", name)
		}
		writeFile(t, fs, name, b)
	}
	t.Logf("%d damages", tried)
}

// positions are all those at the beginning and the end of a file, and some in
// between.
func positions(r *rand.Rand, n int) (all []int) {
	const ends, between = 150, 150
	for i := range n {
		if i < ends || i >= n-ends || r.IntN(n) < between {
			all = append(all, i)
		}
	}
	return all
}

const largeRows = 14 // of one transaction

// TestLargeRecords: records that do not fit an answer come in pieces.
func TestLargeRecords(t *testing.T) {
	w := openWorld(t, t.TempDir(), 1, 2, func(c *server.EmbeddedConfig) { c.SegmentBytes = 4 << 20 })
	defer w.cl.Close()
	w.load()
	dir := filepath.Join(t.TempDir(), "b")
	o := w.options(dir)
	o.Follow = true
	ctx, cancel := context.WithCancel(t.Context())
	put := make(chan error, 1)
	o.Moved = func(m *Manifest) {
		if put == nil {
			return
		}
		c := put
		put = nil
		go func() {
			tab := w.cl.DB.Catalog().MustTable("progress")
			var err error
			for i := 0; i < 8 && err == nil; i++ {
				err = w.cl.DB.Update(context.Background(), func(tx *txn.Txn) error {
					for j := range largeRows {
						row := tab.NewRow()
						row.SetBytes(tab.Field("large"), bytes.Repeat([]byte{byte(i), byte(j)}, 30<<10))
						if err := tx.Put(tab, tables.Str(fmt.Sprint("large ", i, " ", j)), row); err != nil {
							return err
						}
					}
					return nil
				})
			}
			c <- err
			cancel()
		}()
	}
	wait := put
	if _, err := Run(ctx, o); err != nil {
		t.Fatal(err)
	}
	if err := <-wait; err != nil {
		t.Fatal(err)
	}
	into := filepath.Join(t.TempDir(), "r")
	if _, err := Restore(t.Context(), RestoreOptions{From: dir, Dir: into}); err != nil {
		t.Fatal(err)
	}
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{Servers: 1, Partitions: 2, Durability: server.Disk, Dir: into})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	tab := cl.DB.Catalog().MustTable("progress")
	for i := range 8 * largeRows {
		err := cl.DB.View(t.Context(), func(tx *txn.Txn) error {
			row, err := tx.Get(tab, tables.Str(fmt.Sprint("large ", i/largeRows, " ", i%largeRows)))
			if err == nil && !bytes.Equal(row.Bytes(tab.Field("large")), bytes.Repeat([]byte{byte(i / largeRows), byte(i % largeRows)}, 30<<10)) {
				err = errors.New("another value")
			}
			return err
		})
		if err != nil {
			t.Errorf("row %d: %v", i, err)
		}
	}
}

// TestServersEnd: when data servers end during a backup, it ends with what it has,
// or with nothing if it has no first moment yet.
func TestServersEnd(t *testing.T) {
	w := openWorld(t, t.TempDir(), 2, 3, nil)
	w.load()
	for i := range 40 {
		if err := transfer(t.Context(), w.cl.DB, rand.New(rand.NewPCG(1, uint64(i))), 0, int64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "b")
	o := w.options(dir)
	o.Follow = true
	n := 0
	o.Moved = func(*Manifest) {
		if n++; n == 3 {
			go func() { _ = w.cl.Servers[1].Close() }()
		}
	}
	m, err := Run(t.Context(), o)
	if !errors.Is(err, ErrServer) || m == nil {
		t.Fatalf("%v, %v", m, err)
	}
	if _, err := Verify(vfs.Default, dir, nil); err != nil {
		t.Error(err)
	}
	w.checkRestored(dir, 0, 1, 2)
	none := filepath.Join(t.TempDir(), "none")
	o = w.options(none)
	if m, err := Run(t.Context(), o); !errors.Is(err, ErrServer) || m != nil {
		t.Errorf("%v, %v", m, err)
	}
	if _, err := ReadManifest(vfs.Default, none); !errors.Is(err, ErrNoBackup) {
		t.Errorf("after a backup that failed: %v", err)
	}
	if err := w.cl.Close(); err != nil {
		t.Log(err) // one of the servers has ended
	}
}
