package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/hosting"
	"drtmx/internal/placement"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// RestoreOptions say what to restore from a backup. From and Dir are required.
type RestoreOptions struct {
	From string // the directory of the backup
	Dir  string // data directory; it must be empty or not exist
	// To is the tick as of which the data is restored; 0 means the last one.
	To clock.Tick
	// Servers and Partitions of the new cluster; 0 means those of the backup. With
	// other Servers, Partitions 0 means one for each.
	Servers, Partitions int
	FS                  vfs.FS         // of both directories; nil means the operating system's
	Progress            func(Progress) // called by one goroutine at a time; nil means not

	segmentBytes int64 // of the new logs; 0 means the default
}

// Restored describes what was restored.
type Restored struct {
	To         clock.Tick     `json:"to"`
	Time       time.Time      `json:"time"`
	Servers    int            `json:"servers"`
	Partitions int            `json:"partitions"`
	Rows       uint64         `json:"rows"` // of tables
	Tables     map[string]int `json:"tables"`
}

// TimeFormat is the format of times in messages. It is exact for ticks.
const TimeFormat = "2006-01-02T15:04:05.000Z07:00"

func timeText(t clock.Tick) string { return t.Time().Format(TimeFormat) }

// CheckRange returns an ErrRange if the backup cannot be restored to a tick.
func (m *Manifest) CheckRange(to clock.Tick) error {
	if to < m.First || to > m.Last {
		return fmt.Errorf("%w: tick %d (%s), want %d (%s) to %d (%s)", ErrRange,
			to, timeText(to), m.First, timeText(m.First), m.Last, timeText(m.Last))
	}
	return nil
}

// Restore makes a data directory from a backup. It loads the data into a new cluster,
// in a directory beside Dir that gets its name at the end: after an error there is
// nothing, unless the error says that the complete directory could not get its name. It
// first removes the remains of a restore into the same directory that was killed. If
// Dir is a link, the directory that it leads to is meant.
func Restore(ctx context.Context, o RestoreOptions) (res *Restored, err error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	m, err := ReadManifest(o.FS, o.From)
	if err != nil {
		return nil, err
	}
	switch {
	case o.Servers == 0:
		o.Servers = m.Servers
		if o.Partitions == 0 {
			o.Partitions = m.Partitions
		}
	case o.Partitions == 0:
		o.Partitions = o.Servers
	}
	if o.To == 0 {
		o.To = m.Last
	}
	if err := m.CheckRange(o.To); err != nil {
		return nil, err
	}
	if err := datadir.Finished(o.FS, o.Dir); err != nil {
		return nil, err
	}
	if o.Dir, err = target(o.FS, o.Dir); err != nil {
		return nil, err
	}
	made := o.Dir + datadir.Restoring
	if err := datadir.MakeDir(o.FS, made); err != nil {
		return nil, err
	}
	lock, err := datadir.Lock(o.FS, made) // held until the directory has its name
	if err != nil {
		return nil, fmt.Errorf("%w: %s: another restore fills it", ErrInUse, made)
	}
	locked := made
	defer func() { err = errors.Join(err, datadir.Unlock(o.FS, locked, lock)) }()
	if err := datadir.MarkRestoring(o.FS, made); err != nil {
		if errors.Is(err, datadir.ErrForeign) {
			err = fmt.Errorf("%w: %w", ErrInUse, err)
		}
		return nil, err
	}
	if err := datadir.SyncDir(o.FS, filepath.Dir(made)); err != nil {
		return nil, err
	}
	r := &restoring{o: o, m: m, res: Restored{To: o.To, Time: o.To.Time(), Servers: o.Servers, Partitions: o.Partitions, Tables: map[string]int{}}}
	err = r.run(ctx, made)
	if err == nil {
		err = datadir.MarkRestored(o.FS, made)
	}
	if err != nil {
		if rerr := datadir.RemoveRestoring(o.FS, made); rerr != nil {
			err = fmt.Errorf("%w (%s remains: %w)", err, made, rerr)
		}
		return nil, err
	}
	if err := takePlace(o.FS, made, o.Dir); err != nil {
		return nil, fmt.Errorf("%w; what was restored is complete in %s: rename it to where it is to be", err, made)
	}
	locked = o.Dir
	return &r.res, datadir.SyncDir(o.FS, filepath.Dir(made))
}

// target returns the directory that a restore makes, which must be empty or not exist.
// It is a directory that can be replaced: neither a link nor a mount point.
func target(fs vfs.FS, dir string) (string, error) {
	dir = filepath.Clean(dir)
	if vfs.Root(fs) == vfs.Default { // no other one has links
		if st, err := os.Lstat(dir); err == nil && st.Mode()&os.ModeSymlink != 0 {
			to, err := filepath.EvalSymlinks(dir)
			if err != nil {
				return "", fmt.Errorf("%w: %s is a link that leads nowhere: %w", datadir.ErrNotDir, dir, err)
			}
			dir = to
		}
	}
	if err := datadir.Finished(fs, dir); err != nil {
		return "", err
	}
	if err := mustBeEmpty(fs, dir); err != nil {
		return "", err
	}
	st, err := fs.Stat(dir)
	if oserror.IsNotExist(err) {
		return dir, nil
	}
	if err != nil {
		return "", err
	}
	above, err := fs.Stat(filepath.Dir(dir))
	if err == nil && st.DeviceID() != above.DeviceID() {
		err = fmt.Errorf("%w: %s is a mount point and cannot be replaced: want a directory in it", ErrInUse, dir)
	}
	return dir, err
}

// takePlace renames a complete directory to its final name. An empty directory of that
// name is removed.
func takePlace(fs vfs.FS, made, dir string) error {
	if err := mustBeEmpty(fs, dir); err != nil { // somebody may have used it meanwhile
		return err
	}
	if err := fs.Remove(dir); err != nil && !oserror.IsNotExist(err) {
		return err
	}
	return fs.Rename(made, dir)
}

// mustBeEmpty returns an ErrInUse if a directory has anything but the entries in may.
func mustBeEmpty(fs vfs.FS, dir string, may ...string) error {
	names, err := fs.List(dir)
	if oserror.IsNotExist(err) {
		return nil
	}
	for _, name := range names {
		if err == nil && !slices.Contains(may, name) {
			err = fmt.Errorf("%w: %s has %q", ErrInUse, dir, name)
		}
	}
	return err
}

// restoring is a restore under way.
type restoring struct {
	o       RestoreOptions
	m       *Manifest
	res     Restored
	parts   []*contents // by old server
	catalog *tables.Catalog
	db      *txn.DB
	total   uint64
	loaded  atomic.Uint64
	mu      sync.Mutex // of res.Tables, and for Progress
}

func (r *restoring) run(ctx context.Context, dir string) (err error) {
	defer func() {
		for _, c := range r.parts {
			if c != nil {
				err = errors.Join(err, c.base.Close())
			}
		}
	}()
	if err := r.read(); err != nil {
		return err
	}
	if err := r.settleCatalog(); err != nil {
		return err
	}
	cl, err := server.Embedded(ctx, server.EmbeddedConfig{
		Catalog: r.catalog, Servers: r.o.Servers, Partitions: r.o.Partitions, Durability: server.Disk, Dir: dir, Retain: -1,
		FS: r.o.FS, SegmentBytes: r.o.segmentBytes,
	}.Restored(hosting.Origin{Restore: true, After: max(r.m.Last, clock.Tick(r.catalog.ReadableFrom()))}))
	if err != nil {
		return err
	}
	r.db = cl.DB
	if err = r.load(ctx); err == nil {
		err = cl.DB.Seal(ctx)
	}
	r.res.Rows = r.loaded.Load()
	return errors.Join(err, cl.Close())
}

// read reads the logs of all servers.
func (r *restoring) read() error {
	r.show(Progress{Stage: "logs"})
	r.parts = make([]*contents, r.m.Servers)
	return all(r.m.Servers, func(i int) (err error) {
		r.parts[i], err = r.m.readContents(r.o.FS, r.o.From, placement.Server(i), r.o.To)
		return err
	})
}

// settleCatalog takes the newest version of the catalogue that was in use. Indexes
// that were being built are withdrawn.
func (r *restoring) settleCatalog() error {
	for _, c := range r.parts {
		if r.catalog == nil || c.catalog.Version() > r.catalog.Version() {
			r.catalog = c.catalog
		}
		r.total += c.base.Rows
	}
	for _, t := range r.catalog.Tables {
		for _, ix := range t.Building() {
			next, err := r.catalog.With(tables.Change{Built: &tables.BuiltIndex{Table: t.Name(), Index: ix.NameInTable(), Failed: true}})
			if err != nil {
				return err
			}
			r.catalog = next
		}
	}
	return nil
}

// load loads the rows of all old servers at once.
func (r *restoring) load(ctx context.Context) error {
	for _, t := range r.catalog.Tables {
		err := all(len(r.parts), func(i int) error { return r.loadTable(ctx, t, r.parts[i]) })
		if err != nil {
			return fmt.Errorf("backup: table %s: %w", t.Name(), err)
		}
	}
	return nil
}

// loadTable loads the rows of a table that an old server had. Every partition had
// all rows of a replicated table.
func (r *restoring) loadTable(ctx context.Context, t *tables.Table, c *contents) error {
	l, err := r.db.NewLoader(ctx, t)
	if err != nil {
		return err
	}
	ix, n := t.Primary(), 0
	var arena []byte
	for p := range placement.Spread(r.m.Partitions, r.m.Servers).Of(c.server) {
		if err != nil || p > 0 && t.Replicated() {
			break
		}
		err = c.rows(place{p, ix.ID}, func(key index.Key, row []byte) error {
			if n++; n&1023 == 0 {
				if err := context.Cause(ctx); err != nil {
					return err
				}
				r.show(Progress{Stage: "rows", Done: int64(r.loaded.Add(1024)), Total: int64(r.total)})
			}
			var grown tables.Row
			arena, grown = t.Upgrade(arena[:0], row)
			return l.Add(keyOf(ix, key), grown)
		})
	}
	r.loaded.Add(uint64(n & 1023))
	r.mu.Lock()
	r.res.Tables[t.Name()] += n
	r.mu.Unlock()
	return cmp.Or(err, l.Close())
}

func (r *restoring) show(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.o.Progress != nil {
		r.o.Progress(p)
	}
}

// keyOf returns an index key in the form that programs know.
func keyOf(ix *tables.Index, key index.Key) tables.Key {
	switch {
	case !ix.Strings:
		return tables.Num(key.Num)
	case ix.Key == tables.NumberKey:
		n, _ := index.NumOf(key.Str)
		return tables.Num(n)
	}
	return tables.Str(key.Str)
}

// all calls fn for 0 to n-1 at once.
func all(n int, fn func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
