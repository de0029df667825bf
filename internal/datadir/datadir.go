// Package datadir is the data directory of a data server: which server of which
// cluster it belongs to, which process has it open, and how often it has been opened.
//
// The identity is written once, before anything else. The epoch is counted up by each
// server that serves the directory, and is durable before it serves.
package datadir

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/placement"
)

// Format is the version of the files in a data directory.
const Format = 1

// Names in a data directory.
const (
	identityFile = "IDENTITY"
	epochFile    = "EPOCH"
	placeFile    = "PLACE"
	lineageFile  = "LINEAGE"
	temporary    = ".tmp"
	// LockFile is in a directory that Lock has locked, or had.
	LockFile = "LOCK"
)

// Errors of data directories. The text names the directory and what is expected.
var (
	// ErrInUse reports a directory that another process, or this one, has open.
	ErrInUse = errors.New("datadir: the data directory is in use")
	// ErrForeign reports a directory of another server, another cluster or another
	// shape of the cluster.
	ErrForeign = errors.New("datadir: the data directory belongs to something else")
	// ErrVersion reports files of another version of the format.
	ErrVersion = errors.New("datadir: format of another version")
	// ErrCorrupt reports a damaged file.
	ErrCorrupt = errors.New("datadir: damaged")
	// ErrNotDir reports a path at which there is something that is no directory.
	ErrNotDir = errors.New("datadir: want a directory")
)

// Identity says whose data a directory has. It never changes.
type Identity struct {
	Format int `json:"format"`
	// ID is random; the log and the checkpoints in the directory repeat it.
	ID string `json:"id"`
	// Incarnation identifies the life of the state in the directory, which ends with it.
	Incarnation uint64           `json:"incarnation,string"`
	Server      placement.Server `json:"server"`
	Servers     int              `json:"servers"`
	Partitions  int              `json:"partitions"`
	// Catalog is the catalogue with which the directory began; later versions are
	// in the log.
	Catalog json.RawMessage `json:"catalog"`
}

// Bytes returns the ID as it stands in other files.
func (i *Identity) Bytes() (id [16]byte) {
	_, _ = hex.Decode(id[:], []byte(i.ID)) // Open has checked it
	return id
}

// Place is the place of a directory among the members of a cluster, which a
// membership store knows too. The numbers are those of package member.
type Place struct {
	Cluster uint64 `json:"cluster,string"`
	// Admitted is the last instance that is known to have served the directory
	// there, Tried the last one that asked for it.
	Admitted uint64 `json:"admitted,string"`
	Tried    uint64 `json:"tried,string"`
}

// Dir is an open data directory. It is for one goroutine.
type Dir struct {
	Identity
	// Epoch is the one that Begin begins. It counts how often the directory was served.
	Epoch uint32
	// Served reports that the directory was served before this opening.
	Served bool
	// Place is that of the directory; the zero value is none.
	Place Place
	// Since is the lineage of the directory's log: see SetSince. 0 is none.
	Since uint32
	// New reports that this opening has made the directory.
	New bool

	fs   vfs.FS
	path string
	lock io.Closer
}

// Path returns the path of the directory.
func (d *Dir) Path() string { return d.path }

// Read returns the identity of a directory without opening it. ok is false if
// there is none.
func Read(fs vfs.FS, path string) (id *Identity, ok bool, err error) {
	raw, err := read(fs, fs.PathJoin(path, identityFile))
	if oserror.IsNotExist(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	id = &Identity{}
	if err := json.Unmarshal(raw, id); err != nil {
		return nil, false, fmt.Errorf("%w: %s: %v", ErrCorrupt, fs.PathJoin(path, identityFile), err)
	}
	if id.Format != Format {
		return nil, false, fmt.Errorf("%w: %s has format %d, this program reads %d", ErrVersion, path, id.Format, Format)
	}
	if b, err := hex.DecodeString(id.ID); err != nil || len(b) != 16 || id.Incarnation == 0 {
		return nil, false, fmt.Errorf("%w: %s: ID %q, incarnation %d", ErrCorrupt, fs.PathJoin(path, identityFile), id.ID, id.Incarnation)
	}
	return id, true, nil
}

// ReadPlace returns the place of a directory, the zero value if it has none.
func ReadPlace(fs vfs.FS, path string) (p Place, err error) {
	raw, err := read(fs, fs.PathJoin(path, placeFile))
	if oserror.IsNotExist(err) {
		return p, nil
	}
	if err == nil {
		if jerr := json.Unmarshal(raw, &p); jerr != nil || p.Cluster == 0 {
			err = fmt.Errorf("%w: %s: cluster %d, %v", ErrCorrupt, fs.PathJoin(path, placeFile), p.Cluster, jerr)
		}
	}
	return p, err
}

// WritePlace gives a directory that is not open a place, durably.
func WritePlace(fs vfs.FS, path string, p Place) error { return WriteJSON(fs, path, placeFile, p) }

// SetPlace gives the directory a place, durably.
func (d *Dir) SetPlace(p Place) error {
	if err := WritePlace(d.fs, d.path, p); err != nil {
		return err
	}
	d.Place = p
	return nil
}

// Open opens the directory of a server, and makes it if there is none; want then is its
// identity, with a new ID if it has none. An existing directory must agree with want in
// server, servers and partitions. If Open fails on what it finds, it has changed
// nothing. The epoch is the next one, and begins with Begin. A directory with a place
// is refused: only the membership store knows whether the place is free, and OpenPlaced
// is for callers that ask it.
func Open(fs vfs.FS, path string, want Identity) (*Dir, error) {
	if err := CheckDir(fs, path); err != nil {
		return nil, err
	}
	p, err := ReadPlace(fs, path)
	if err != nil {
		return nil, err
	}
	if p != (Place{}) {
		return nil, fmt.Errorf("%w: %s has a place in cluster %016x of a membership store, want --etcd", ErrForeign, path, p.Cluster)
	}
	return OpenPlaced(fs, path, want)
}

// Inspect returns the identity and the place of a directory, nil if it has no data.
// It fails as Open does on what it finds, and changes nothing.
func Inspect(fs vfs.FS, path string, want Identity) (id *Identity, p Place, err error) {
	if err := CheckDir(fs, path); err != nil {
		return nil, p, err
	}
	id, ok, err := Read(fs, path)
	switch {
	case err != nil:
		return nil, p, err
	case ok && (id.Server != want.Server || id.Servers != want.Servers || id.Partitions != want.Partitions):
		return nil, p, fmt.Errorf("%w: %s is of server %d of %d with %d partitions, not of server %d of %d with %d partitions",
			ErrForeign, path, id.Server, id.Servers, id.Partitions, want.Server, want.Servers, want.Partitions)
	case ok:
		p, err = ReadPlace(fs, path)
		return id, p, err
	}
	if err = onlyOurs(fs, path); oserror.IsNotExist(err) {
		err = nil
	}
	return nil, p, err
}

// OpenPlaced is Open for a server whose place is in a membership store.
func OpenPlaced(fs vfs.FS, path string, want Identity) (d *Dir, err error) {
	have, _, err := Inspect(fs, path, want)
	if err != nil {
		return nil, err
	}
	if have == nil {
		if err := makeDir(fs, path); err != nil {
			return nil, err
		}
	}
	d = &Dir{fs: fs, path: path}
	if d.lock, err = Lock(fs, path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
			d = nil
		}
	}()
	have, ok, err := Read(fs, path) // another process may have made it meanwhile
	if err != nil {
		return d, err
	}
	if !ok {
		if have, err = newIdentity(want); err != nil {
			return d, err
		}
		raw, err := json.Marshal(have)
		if err != nil {
			return d, err
		}
		if err := write(fs, path, identityFile, raw); err != nil {
			return d, err
		}
		d.New = true
	} else if err := cmp.Or(SyncDir(fs, path), syncName(fs, path)); err != nil { // a process that was killed may not have come so far
		return d, err
	}
	if _, ok, err := ReadCopy(fs, path); err != nil || ok {
		return d, errors.Join(err, fmt.Errorf("%w: %s is the copy of a data directory, and may lack what was acknowledged; its cluster adopts it if it is in sync", ErrForeign, path))
	}
	d.Identity = *have
	if d.Place, err = ReadPlace(fs, path); err != nil {
		return d, err
	}
	if d.Since, err = ReadSince(fs, path); err != nil {
		return d, err
	}
	d.Epoch, d.Served, err = ReadEpoch(fs, path)
	d.Epoch++
	if err == nil && !d.Served { // nor so far
		err = syncParents(fs, path)
	}
	return d, err
}

// syncParents makes the names of a directory, and of those above it, durable.
func syncParents(fs vfs.FS, path string) error {
	for ; fs.PathDir(path) != path; path = fs.PathDir(path) {
		if err := syncName(fs, path); err != nil {
			return err
		}
	}
	return nil
}

// syncName makes the name of a directory durable. A parent that may not be read was not
// made here.
func syncName(fs vfs.FS, path string) error {
	if err := SyncDir(fs, fs.PathDir(path)); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

// Begin begins the epoch, durably. The caller must not serve before. The files of every
// served directory must exist before Begin, so that a later opening that does not find
// them knows that they are lost.
func (d *Dir) Begin() error { return writeNumber(d.fs, d.path, epochFile, d.Epoch) }

// SetSince records the lineage of the directory's log, durably: the epoch in which its
// copies began, or in which a copy last became the home. A copy that takes the place of
// a directory begins another lineage, so a directory that turns up again is recognised.
func (d *Dir) SetSince(since uint32) error {
	if err := writeNumber(d.fs, d.path, lineageFile, since); err != nil {
		return err
	}
	d.Since = since
	return nil
}

// ReadEpoch returns the epoch in which a directory was last served. ok is false if it
// never was.
func ReadEpoch(fs vfs.FS, path string) (epoch uint32, ok bool, err error) {
	return readNumber(fs, path, epochFile)
}

// ReadSince returns the lineage of a directory's log, 0 if it has none: see SetSince.
func ReadSince(fs vfs.FS, path string) (since uint32, err error) {
	since, _, err = readNumber(fs, path, lineageFile)
	return since, err
}

// readNumber reads a file that has a number. ok is false if there is none.
func readNumber(fs vfs.FS, path, name string) (n uint32, ok bool, err error) {
	at := fs.PathJoin(path, name)
	raw, err := read(fs, at)
	if oserror.IsNotExist(err) {
		return 0, false, nil
	}
	if err == nil {
		if k, serr := fmt.Sscanf(string(raw), "%d\n", &n); k != 1 || serr != nil {
			err = fmt.Errorf("%w: %s: %q is no epoch", ErrCorrupt, at, raw)
		}
	}
	return n, err == nil, err
}

func writeNumber(fs vfs.FS, path, name string, n uint32) error {
	return write(fs, path, name, fmt.Appendf(nil, "%d\n", n))
}

// CheckDir returns an ErrNotDir if there is something at a path that is no directory.
func CheckDir(fs vfs.FS, path string) error {
	st, err := fs.Stat(path)
	switch {
	case err == nil && !st.IsDir():
		return fmt.Errorf("%w: %s is a file", ErrNotDir, path)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %s is below a file", ErrNotDir, path)
	case oserror.IsNotExist(err):
		return nil
	}
	return err
}

// Lock locks a directory, or fails with ErrInUse. Closing the result unlocks it.
func Lock(fs vfs.FS, path string) (io.Closer, error) {
	if vfs.Root(fs) == vfs.Default {
		// The operating system lets one process lock a file twice, and vfs knows the
		// file by its name alone.
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			real, err = filepath.Abs(real)
		}
		if err != nil {
			return nil, err
		}
		path = real
	}
	lock, err := fs.Lock(fs.PathJoin(path, LockFile))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrInUse, path, err)
	}
	return lock, nil
}

func newIdentity(want Identity) (*Identity, error) {
	want.Format = Format
	if want.ID == "" {
		var id [16]byte
		if _, err := rand.Read(id[:]); err != nil {
			return nil, err
		}
		want.ID = hex.EncodeToString(id[:])
	}
	return &want, nil
}

// onlyOurs refuses a directory without an identity that has files which Open has not
// made: it belongs to another program.
func onlyOurs(fs vfs.FS, path string) error {
	names, err := fs.List(path)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n != LockFile && n != identityFile+temporary {
			return fmt.Errorf("%w: %s has %q and no %s, want a data directory or an empty one", ErrForeign, path, n, identityFile)
		}
	}
	return nil
}

// makeDir creates a directory and its parents, durably.
func makeDir(fs vfs.FS, path string) error {
	var missing []string
	for p := path; ; p = fs.PathDir(p) {
		if _, err := fs.Stat(p); err == nil {
			break
		} else if !oserror.IsNotExist(err) {
			return err
		}
		missing = append(missing, p)
		if fs.PathDir(p) == p {
			break
		}
	}
	if err := fs.MkdirAll(path, 0o700); err != nil {
		return err
	}
	for _, p := range missing {
		if err := SyncDir(fs, fs.PathDir(p)); err != nil {
			return err
		}
	}
	return nil
}

// Close releases the directory.
func (d *Dir) Close() error { return d.lock.Close() }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// read reads a small file, whose first line is the checksum of the rest.
func read(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	sum, rest, ok := bytes.Cut(raw, []byte("\n"))
	if !ok || string(sum) != fmt.Sprintf("crc32c %08x", crc32.Checksum(rest, castagnoli)) {
		return nil, fmt.Errorf("%w: %s: the checksum in its first line is not that of the rest", ErrCorrupt, name)
	}
	return rest, nil
}

// write replaces a small file, durably and at once.
func write(fs vfs.FS, dir, name string, raw []byte) error {
	at := fs.PathJoin(dir, name)
	f, err := fs.Create(at+temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(append(fmt.Appendf(nil, "crc32c %08x\n", crc32.Checksum(raw, castagnoli)), raw...))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fs.Rename(at+temporary, at)
	}
	if err == nil {
		err = SyncDir(fs, dir)
	}
	if err != nil {
		return fmt.Errorf("datadir: write %s: %w", at, err)
	}
	return nil
}

// SyncDir makes the names in a directory durable.
func SyncDir(fs vfs.FS, path string) error {
	d, err := fs.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
