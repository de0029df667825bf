package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"

	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/wire"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrLost reports lost data of a server: neither its directory nor a copy in sync is
// there, or the directory lacks a part without which nobody knows what it had. The text
// names the directory.
var ErrLost = errors.New("server: data is lost")

// Files in the data directory of a cluster whose servers run on one host.
const (
	setsFile = "COPIES"
	setsLock = "COPIES.lock"
)

// setsPause is the time between attempts to lock the sets.
const setsPause = time.Millisecond

// fileSets holds the sets of copies in sync in a file. Several processes may use
// it.
type fileSets struct {
	fs  vfs.FS
	dir string
	mu  sync.Mutex
	// failed is the error of a change that can be seen and may not be durable. Nothing
	// is changed after it: a later sync may succeed although the change is lost.
	failed error
}

// FileSets returns the sets in the data directory of a cluster whose servers run
// on one host, in one process or in several.
func FileSets(fs vfs.FS, dir string) Sets { return &fileSets{fs: fs, dir: dir} }

// RemoveFileSets removes the sets. The caller removes the data of all servers next, or
// it has no copies.
func RemoveFileSets(fs vfs.FS, dir string) error {
	if err := fs.Remove(fs.PathJoin(dir, setsFile)); err != nil {
		if oserror.IsNotExist(err) {
			return nil
		}
		return err
	}
	return datadir.SyncDir(fs, dir)
}

func (f *fileSets) read() (of map[placement.Server]replica.Set, err error) {
	_, err = datadir.ReadJSON(f.fs, f.dir, setsFile, &of)
	return of, err
}

// Set implements Sets.
func (f *fileSets) Set(_ context.Context, server placement.Server) (replica.Set, error) {
	of, err := f.read()
	return of[server], err
}

// SwapSet implements Sets.
func (f *fileSets) SwapSet(ctx context.Context, server placement.Server, from, to replica.Set) (now replica.Set, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := datadir.MakeDir(f.fs, f.dir); err != nil {
		return now, err
	}
	lock, err := f.fs.Lock(f.fs.PathJoin(f.dir, setsLock))
	for ; err != nil; lock, err = f.fs.Lock(f.fs.PathJoin(f.dir, setsLock)) {
		select {
		case <-ctx.Done():
			return now, errors.Join(ctx.Err(), err)
		case <-time.After(setsPause):
		}
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if f.failed != nil {
		return now, f.failed
	}
	of, err := f.read()
	if err != nil || of[server] != from {
		return of[server], err
	}
	if of == nil {
		of = map[placement.Server]replica.Set{}
	}
	of[server] = to
	if err := datadir.WriteJSON(f.fs, f.dir, setsFile, of); err != nil {
		if seen, rerr := f.read(); rerr != nil || seen[server] != from {
			f.failed = err
		}
		return now, err
	}
	return to, nil
}

// FileReplicas returns how many copies of each server's data there are in the data
// directory of a cluster whose servers run on one host, the server's own included:
// as many as one of the sets has, or as have a directory, in sync or not. It is 0 if
// there are no sets: no server there ever had copies.
func FileReplicas(fs vfs.FS, dir string, servers int) (int, error) {
	f := &fileSets{fs: fs, dir: dir}
	of, err := f.read()
	if err != nil || len(of) == 0 {
		return 0, err
	}
	most := 1
	for home := range placement.Server(servers) {
		most = max(most, bits.Len8(uint8(of[home].Members)))
		for k := most; k < min(servers, replica.MaxMembers); k++ {
			if _, err := fs.Stat(CopyDir(fs, ServerDir(dir, (int(home)+k)%servers), home)); err == nil {
				most = k + 1
			} else if !oserror.IsNotExist(err) {
				return 0, err
			}
		}
	}
	return most, nil
}

// AdoptCopies replaces lost data directories by copies in sync, in the data directory
// of a cluster that does not run, and returns the directories that it has moved. It
// fails with ErrLost if a lost directory has no copy in sync.
func AdoptCopies(ctx context.Context, fs vfs.FS, dir string) (adopted []string, err error) {
	if err := datadir.CheckDir(fs, dir); err != nil {
		return nil, err
	}
	f := &fileSets{fs: fs, dir: dir}
	of, err := f.read()
	if err != nil {
		return nil, err
	}
	for _, home := range slices.Sorted(maps.Keys(of)) {
		to := ServerDir(dir, int(home))
		if _, there, err := datadir.Read(fs, to); err != nil || there {
			if err != nil {
				return adopted, err
			}
			continue
		}
		from, err := f.adopt(ctx, home, of)
		if err != nil {
			return adopted, fmt.Errorf("data server %d, %s: %w", home, to, err)
		}
		adopted = append(adopted, from)
	}
	return adopted, nil
}

// adopt lets a copy take the place of a data directory that is lost. The set changes
// when the copy has been read, and nothing is in its way: from then on neither the
// lost directory nor another copy can take the place.
func (f *fileSets) adopt(ctx context.Context, home placement.Server, of map[placement.Server]replica.Set) (string, error) {
	set := of[home]
	servers, err := f.servers()
	var faults []error
	if err != nil {
		faults = append(faults, err)
	}
	for k := replica.Member(1); int(k) < servers && k < replica.MaxMembers; k++ {
		at := (home + placement.Server(k)) % placement.Server(servers)
		keeper := ServerDir(f.dir, int(at))
		from := CopyDir(f.fs, keeper, home)
		id, ok, err := datadir.Read(f.fs, from)
		if err == nil && !ok {
			continue
		}
		made, _, cerr := datadir.ReadCopy(f.fs, from)
		if err = errors.Join(err, cerr); err != nil {
			faults = append(faults, err)
			continue
		}
		next, err := replica.Promote(set, k, replica.Epoch(made.Since))
		if err != nil {
			continue // it is not in sync
		}
		err = f.present(at, of[at])
		if err == nil {
			_, err = CheckCopy(f.fs, from, id, CopyRead{})
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", from, err))
			continue
		}
		return from, f.move(ctx, keeper, from, home, set, next)
	}
	err = fmt.Errorf("%w: there is no directory, and no copy of it that is in sync", ErrLost)
	for _, fault := range faults {
		err = fmt.Errorf("%w; %w", err, fault)
	}
	return "", err
}

// present fails if the directory of a server is older than the one that the server last
// had: its copies of other servers are then older, too.
func (f *fileSets) present(server placement.Server, set replica.Set) error {
	if set == (replica.Set{}) {
		return nil
	}
	epoch, _, err := datadir.ReadEpoch(f.fs, ServerDir(f.dir, int(server)))
	if err != nil {
		return err
	}
	since, err := datadir.ReadSince(f.fs, ServerDir(f.dir, int(server)))
	if err != nil {
		return err
	}
	_, err = replica.Open(set, replica.Epoch(epoch)+1, replica.Epoch(since), replica.MaxMembers)
	return err
}

func (f *fileSets) move(ctx context.Context, keeper, from string, home placement.Server, set, next replica.Set) (err error) {
	lock, err := datadir.Lock(f.fs, keeper)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := datadir.Adoptable(f.fs, from, ServerDir(f.dir, int(home))); err != nil {
		return err
	}
	now, err := f.SwapSet(ctx, home, set, next)
	if err != nil {
		return err
	}
	if now != next {
		return replica.ErrReplaced
	}
	return datadir.Adopt(f.fs, from, ServerDir(f.dir, int(home)), uint32(next.Epoch), uint32(next.Since))
}

// servers returns the number of data servers, by the first identity that can be read.
// damaged is the error of one that cannot.
func (f *fileSets) servers() (n int, damaged error) {
	for i := range wire.MaxParts {
		switch id, ok, err := datadir.Read(f.fs, ServerDir(f.dir, i)); {
		case err != nil:
			damaged = cmp.Or(damaged, err)
		case ok:
			return id.Servers, nil
		}
	}
	return 0, damaged
}
