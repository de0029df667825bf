package server

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
)

// copiedFiles are the files of a cluster with copies, all in sync, and what its
// accounts have.
func copiedFiles(t *testing.T, o copyOptions) (files map[string][]byte, balances map[uint64]int64) {
	t.Helper()
	disk := vfstest.NewMem()
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	balances = map[uint64]int64{}
	for round := range 3 {
		for id := range uint64(24) {
			balances[id] = int64(100*round) + int64(id)
			must(t, c.put(t.Context(), id, balances[id]))
		}
		if round < 2 {
			for _, s := range c.Servers {
				must(t, s.durable.checkpoints.run(t.Context()))
			}
			await(t, "the copies take the checkpoints", func() bool { return copiesHaveCheckpoints(disk, o) })
		}
	}
	c.inSync(t)
	must(t, c.Close())
	files = map[string][]byte{}
	filesOf(t, disk, "data", files)
	return files, balances
}

// used is the number of bytes before the zeros at the end, and some of these.
func used(b []byte) int {
	return min(len(bytes.TrimRight(b, "\x00"))+16, len(b))
}

func copiesHaveCheckpoints(disk vfs.FS, o copyOptions) bool {
	for home := range o.servers {
		names, err := disk.List(disk.PathJoin(CopyDir(disk, ServerDir("data", (home+1)%o.servers), placement.Server(home)), CheckpointDir))
		if err != nil || len(names) == 0 {
			return false
		}
	}
	return true
}

// TestDamagedCopies: one byte of the data directory of a cluster with copies is
// another one, in turn in every file: of servers, of copies, and of what says which
// copies are in sync; and the same when the directory of a server is lost, and its
// copy must take its place. Either the cluster does not open, and the error names
// the file and, in large files, the place; or everything that was acknowledged is
// there. DRTMX_FAULTS sets the number of bytes of each file; 0 is all.
func TestDamagedCopies(t *testing.T) {
	t.Parallel()
	seed, most := testseed.Of(t), testseed.Number(t, "DRTMX_FAULTS", 2) // at least 2: one with each way to start
	r := rand.New(rand.NewPCG(seed, 0))
	o := copyOptions{servers: 2, replicas: 2, patience: 200 * time.Millisecond}
	files, balances := copiedFiles(t, o)
	lost := ServerDir("data", 0) + "/"
	for _, path := range slices.Sorted(maps.Keys(files)) {
		b := files[path]
		var tally [2][2]int       // by whether a directory is lost, and whether the cluster opens
		places := r.Perm(used(b)) // what follows is zero, and free
		if most > 0 {
			places = places[:min(most, len(places))]
		}
		for n, at := range places {
			for without := range tally {
				if without == 1 && strings.HasPrefix(path, lost) || without != n%2 && most > 0 && !strings.Contains(path, CopiesDir) {
					continue
				}
				damaged := maps.Clone(files)
				damaged[path] = bytes.Clone(b)
				damaged[path][at] ^= byte(1 + r.IntN(255))
				if without == 1 {
					maps.DeleteFunc(damaged, func(p string, _ []byte) bool { return strings.HasPrefix(p, lost) })
				}
				opened, err := openDamagedCopies(t, withFiles(t, damaged).(*vfstest.Mem), path, o, balances)
				if err != nil {
					t.Errorf("DRTMX_SEED=%d: %s with another byte at %d of %d, server 0 is lost: %v: %v", seed, path, at, len(b), without == 1, err)
				}
				if opened {
					tally[without][1]++
				} else {
					tally[without][0]++
				}
			}
		}
		t.Logf("%s, %d bytes: %d damages are refused, %d are not needed; without the directory of server 0, %d and %d",
			path, len(b), tally[0][0], tally[0][1], tally[1][0], tally[1][1])
	}
}

func openDamagedCopies(t *testing.T, disk *vfstest.Mem, path string, o copyOptions, balances map[uint64]int64) (opened bool, err error) {
	t.Helper()
	c, err := openCopied(t, disk, o)
	if err != nil {
		return false, saysWhatIsDamaged(disk, path, err)
	}
	ids := slices.Sorted(maps.Keys(balances))
	have, _ := accountsIn(t, c.Cluster, c.acct, ids)
	for _, id := range ids {
		if have[id] != balances[id] {
			err = errors.Join(err, fmt.Errorf("account %d has %d, and %d was acknowledged", id, have[id], balances[id]))
		}
	}
	for _, s := range c.Servers {
		err = errors.Join(err, s.Check())
	}
	return true, errors.Join(err, c.Close())
}

// saysWhatIsDamaged returns an error if err is of no known kind, or does not name a
// damaged file in one line.
func saysWhatIsDamaged(fs vfs.FS, path string, err error) error {
	var corrupt *wal.CorruptError
	var torn *image.CorruptError
	var logVersion *wal.VersionError
	var imageVersion *image.VersionError
	known := errors.As(err, &corrupt) || errors.As(err, &torn) || errors.As(err, &logVersion) || errors.As(err, &imageVersion)
	for _, kind := range []error{datadir.ErrCorrupt, datadir.ErrVersion, datadir.ErrForeign, replica.ErrReplaced, ErrRecovery, ErrConfig, ErrLost} {
		known = known || errors.Is(err, kind)
	}
	of, large := fs.PathBase(path), strings.HasSuffix(path, ".log") || strings.Contains(path, CheckpointDir)
	if strings.HasSuffix(path, ".log") { // a frame may begin in the file before
		of = ".log"
	}
	if !known || !strings.Contains(err.Error(), of) || large && !namesPlace.MatchString(err.Error()) || strings.Contains(err.Error(), "\n") {
		return fmt.Errorf("the error does not say in a line what is damaged, or is of no known kind: %w", err)
	}
	return nil
}
