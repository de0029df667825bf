package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/tables"
)

// TestEveryPrefixOfTheLogIsAState: whatever part of its log a server is left with, it
// has had that state: a transaction of several of its partitions is there as a whole or
// not at all. A crash rarely ends between two given records, so the log is cut at each.
func TestEveryPrefixOfTheLogIsAState(t *testing.T) {
	t.Parallel()
	cat, seed := crashCatalog(t), testseed.Of(t)
	mem := vfstest.NewCrashableMem()
	cfg := crashConfig(vfstest.New(mem), cat, 1, seed)
	cfg.SegmentBytes, cfg.CheckpointBytes = 4<<20, 1<<30 // one file has all records
	cl, err := Embedded(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var known crashLedger
	if err := known.fill(cl.DB); err != nil {
		t.Fatal(err)
	}
	filled := cl.Servers[0].durable.end()
	account, entry := cl.DB.Catalog().MustTable("account"), cl.DB.Catalog().MustTable("entry")
	for n := range 24 {
		s := &transferState{
			from: uint64(n % crashAccounts), to: uint64((n + 1 + n/crashAccounts) % crashAccounts), amount: int64(1 + n), tried: true,
			key: fmt.Sprintf("transfer %d", n), renamedTo: fmt.Sprintf("renamed %d", n), moving: n%3 == 0,
		}
		known.transfers = append(known.transfers, s)
		err := cl.DB.Update(t.Context(), transferOnce(account, entry, s))
		if s.moving {
			err = errors.Join(err, cl.DB.Update(t.Context(), renameOnce(entry, s)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var records [][]byte
	if _, err := cl.Servers[0].durable.log.Read(filled, func(r *wal.Record) bool {
		records = append(records, slices.Clone(r.Payload))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	left := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(seed, 0))})
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	name, all := fileOf(t, left, records[0])
	states := map[int]int{} // by the number of transfers
	end := 0
	for i, r := range records {
		at := bytes.Index(all[end:], r)
		if at < 0 {
			t.Fatalf("record %d of %d is not in %s", i, len(records), name)
		}
		at, end = end+at, end+at+len(r)
		f, err := readPrefix(cat, left, name, at, len(all), seed)
		if err == nil {
			err = known.check(f)
		}
		if err != nil {
			t.Fatalf("DRTMX_SEED=%d: the first %d of %d records after the accounts: %v", seed, i, len(records), err)
		}
		states[len(f.transfers)]++
	}
	if len(states) < len(known.transfers) {
		t.Fatalf("%d prefixes have %d numbers of transfers; want each up to %d", len(records), len(states), len(known.transfers)-1)
	}
	t.Logf("%d prefixes of a log", len(records))
}

// fileOf returns the file of a log that has a record, and its content.
func fileOf(t *testing.T, fs vfs.FS, record []byte) (string, []byte) {
	t.Helper()
	for _, name := range filesUnder(fs, "data") {
		f, err := fs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(all, record) {
			return name, all
		}
	}
	t.Fatal("no file has the records")
	return "", nil
}

// readPrefix returns what a server recovers from a log that ends with the given byte
// of its only file.
func readPrefix(cat *tables.Catalog, mem *vfstest.Mem, name string, end, size int, seed uint64) (f found, err error) {
	mem = mem.CrashClone(vfs.CrashCloneCfg{})
	file, err := mem.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return f, err
	}
	_, err = file.WriteAt(make([]byte, size-end), int64(end))
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return f, err
	}
	cl, err := crashBank(vfstest.New(mem), cat, 1, seed)
	if err != nil {
		return f, err
	}
	f, err = readBank(cl.DB)
	return f, errors.Join(err, cl.Servers[0].Check(), cl.Close())
}
