package tpcc

import (
	"encoding/json"
	"fmt"
	"sync"

	"drtmx/tables"
)

// Storage is how the tables are stored that are read by ranges of their keys: HISTORY, NEW-ORDER and
// ORDER-LINE. All other tables, and the secondary indexes, are the same.
type Storage string

// Storages. The empty one is StoredXStore.
const (
	StoredXStore    Storage = "xstore"    // the learned index
	StoredRolex     Storage = "rolex"     // tables.Rolex
	StoredFineStore Storage = "finestore" // tables.FineStore
	// StoredHStore has a hash index with a twin, which is local: procedures read ranges.
	StoredHStore Storage = "hstore"
)

// Storages are all of them; the first is the default.
var Storages = []Storage{StoredXStore, StoredRolex, StoredFineStore, StoredHStore}

// Definitions returns the definitions of Definitions, stored so.
func (s Storage) Definitions() []tables.Def {
	defs := Definitions()
	for i := range defs {
		d := &defs[i]
		if d.Primary != tables.Ordered {
			continue
		}
		switch s {
		case StoredRolex:
			d.Engine = tables.Rolex
		case StoredFineStore:
			d.Engine = tables.FineStore
		case StoredHStore:
			d.Primary, d.Twin = tables.Hash, tables.TwinLocal
		}
	}
	return defs
}

// catalogs are those of Storages.
var catalogs = sync.OnceValue(func() map[Storage]*tables.Catalog {
	all := map[Storage]*tables.Catalog{}
	for _, s := range Storages {
		c, err := tables.NewCatalog(s.Definitions()...)
		if err != nil {
			panic(err) // the definitions are constants
		}
		all[s] = c
	}
	all[""] = all[StoredXStore]
	return all
})

// Catalog returns the catalogue of Definitions. All calls return the same one. It is nil if there is no
// such storage.
func (s Storage) Catalog() *tables.Catalog { return catalogs()[s] }

// storageOf returns the storage whose catalogue c is, or ErrCatalog.
func storageOf(c *tables.Catalog) (Storage, error) {
	if c == nil {
		return "", fmt.Errorf("%w: there is none", ErrCatalog)
	}
	for _, s := range Storages {
		if c == s.Catalog() {
			return s, nil
		}
	}
	got, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrCatalog, err)
	}
	for _, s := range Storages {
		want, err := json.Marshal(s.Catalog())
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrCatalog, err)
		}
		if string(got) == string(want) {
			return s, nil
		}
	}
	return "", fmt.Errorf("%w: its definitions differ", ErrCatalog)
}
