package tables

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Change makes a version of a catalogue from the previous one. Exactly one field is
// set.
type Change struct {
	// Table is added. Rows of a replicated table come from loading, so such a
	// table cannot be added.
	Table *Def `json:"table,omitempty"`
	// Column is added to a table.
	Column *AddedColumn `json:"column,omitempty"`
	// Index is added to a table. Transactions maintain it from then on; it can be
	// read when it is built.
	Index *AddedIndex `json:"index,omitempty"`
	// Twin adds a twin to a table, or takes it away. Transactions maintain the twin from
	// then on; ranges can be read when it is built.
	Twin *ChangedTwin `json:"twin,omitempty"`
	// Built ends the build of an index, or of a twin.
	Built *BuiltIndex `json:"built,omitempty"`
}

// ChangedTwin is the twin that a table has from then on. A table that has one must lose it
// before it can have another.
type ChangedTwin struct {
	Table string `json:"table"`
	Twin  Twin   `json:"twin,omitempty"` // empty: none
}

// AddedIndex is a secondary index that is added to a table.
type AddedIndex struct {
	Table string    `json:"table"`
	Index Secondary `json:"index"`
}

// BuiltIndex says how the build of an index has ended.
type BuiltIndex struct {
	Table string `json:"table"`
	Index string `json:"index"` // as Index.NameInTable
	// Failed says that the index is withdrawn: transactions do not maintain it any
	// more. So ends also a twin that is taken away.
	Failed bool `json:"failed,omitempty"`
	// Tick is a tick at which the index had all entries, or up to which the twin that is
	// taken away was maintained.
	Tick uint64 `json:"tick,omitempty"`
}

// AddedColumn is a column that is added to a table.
type AddedColumn struct {
	Table  string `json:"table"`
	Column Column `json:"column"` // the catalogue sets Since
}

// maxIndexes bounds the indexes of a catalogue, including withdrawn ones.
const maxIndexes = 1 << 12

// Version returns the number of changes since NewCatalog.
func (c *Catalog) Version() int { return len(c.changes) }

// With returns the next version of the catalogue, or c itself if it already includes
// the change. It returns an ErrSchema for a change that is invalid or contradicts the
// catalogue. Indexes keep their numbers.
func (c *Catalog) With(ch Change) (*Catalog, error) {
	next := &Catalog{
		Tables: slices.Clone(c.Tables), Indexes: slices.Clone(c.Indexes), byName: maps.Clone(c.byName),
		base: c.base, born: c.born, ended: c.ended, needs: c.needs, changes: append(slices.Clip(c.changes), ch),
	}
	switch ch {
	case Change{Table: ch.Table}:
		if ch.Table != nil {
			return c.withTable(next, ch)
		}
	case Change{Column: ch.Column}:
		return c.withColumn(next, ch.Column)
	case Change{Index: ch.Index}:
		return c.withIndex(next, ch.Index)
	case Change{Twin: ch.Twin}:
		return c.withTwin(next, ch.Twin)
	case Change{Built: ch.Built}:
		return c.withBuilt(next, ch.Built)
	}
	return nil, fmt.Errorf("%w: a change of nothing, or of several things", ErrSchema)
}

// ReadableFrom returns the first tick at which all indexes of the catalogue have their
// entries.
func (c *Catalog) ReadableFrom() uint64 { return c.born }

// ReadersNeed returns the version with which the last index became unreadable that could be
// read before, 0 if none did. Transactions of an earlier one may read an index that is not
// maintained any more.
func (c *Catalog) ReadersNeed() int { return c.needs }

// EndedAt returns a tick up to which all indexes were maintained that were taken away since:
// what is committed without them has higher ticks.
func (c *Catalog) EndedAt() uint64 { return c.ended }

func (c *Catalog) withIndex(next *Catalog, a *AddedIndex) (*Catalog, error) {
	t, err := c.Table(a.Table)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	for _, ix := range slices.Concat(t.secondary, t.building) {
		if ix.twin || ix.second.Name != a.Index.Name {
			continue
		}
		was, werr := json.Marshal(ix.second)
		is, err := json.Marshal(a.Index)
		if werr == nil && err == nil && bytes.Equal(was, is) {
			return c, nil
		}
		return nil, fmt.Errorf("%w: table %s has an index %s, with another definition", ErrSchema, a.Table, a.Index.Name)
	}
	var faults faults
	if !t.index.KeepsVersions() { // the build of an index reads the rows as of a moment
		faults.add("table %s: an index cannot be added later to a table of engine %s", a.Table, t.index.Engine)
	}
	own := next.alter(t, t.def, nil, &faults)
	own.since = next.Version()
	second := a.Index
	ix := own.addSecondary(&second, &faults)
	ix.ID, ix.hidden = len(next.Indexes), true
	if ix.ID >= maxIndexes {
		faults.add("index %s: %d indexes, limit %d", ix.Name, ix.ID+1, maxIndexes)
	}
	own.building = append(own.building, ix)
	next.Indexes = append(next.Indexes, ix)
	return next.replace(t, own, &faults)
}

// withTwin begins to add a twin, or to take one away. A twin that is taken away is first one that
// nobody reads and that is maintained: as long as a data server has not heard of that, readers of
// its part of the twin do not know better, and others must not commit without it. When all have
// heard, Built ends it.
func (c *Catalog) withTwin(next *Catalog, a *ChangedTwin) (*Catalog, error) {
	t, err := c.Table(a.Table)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	var faults faults
	d := t.def
	switch has := t.twin; {
	case a.Twin == "" && (has == nil || has.leaving), has != nil && !has.leaving && a.Twin == d.Twin:
		return c, nil
	case has != nil && has.leaving:
		return nil, fmt.Errorf("%w: table %s has a twin %q that is being taken away", ErrSchema, a.Table, d.Twin)
	case has != nil && a.Twin != "":
		return nil, fmt.Errorf("%w: table %s has a twin %q: take it away before it gets a twin %q", ErrSchema, a.Table, d.Twin, a.Twin)
	case has != nil:
		if !has.hidden {
			next.needs = next.Version()
		}
		own := next.alter(t, d, nil, &faults)
		if !has.hidden {
			own.building = append(own.building, own.twin)
		}
		own.twin.hidden, own.twin.leaving = true, true
		return next.replace(t, own, &faults)
	}
	d.Twin = a.Twin
	own := next.alter(t, d, nil, &faults)
	own.since = next.Version() // servers refuse clients that do not maintain it
	if twin := own.twin; twin != nil {
		twin.ID, twin.hidden = len(next.Indexes), true
		if twin.ID >= maxIndexes {
			faults.add("index %s: %d indexes, limit %d", twin.Name, twin.ID+1, maxIndexes)
		}
		own.building = append(own.building, twin)
		next.Indexes = append(next.Indexes, twin)
	}
	return next.replace(t, own, &faults)
}

func (c *Catalog) withBuilt(next *Catalog, b *BuiltIndex) (*Catalog, error) {
	t, err := c.Table(b.Table)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	at := slices.IndexFunc(t.building, func(ix *Index) bool { return ix.NameInTable() == b.Index })
	if at < 0 {
		return nil, fmt.Errorf("%w: table %s builds no index %s", ErrSchema, b.Table, b.Index)
	}
	var faults faults
	ix, d := t.building[at], t.def
	switch {
	case ix.leaving && !b.Failed:
		return nil, fmt.Errorf("%w: table %s takes its twin away, and does not build it", ErrSchema, b.Table)
	case b.Failed && ix.twin:
		d.Twin = ""
	case !b.Failed && !ix.twin:
		d.Secondary = append(slices.Clip(d.Secondary), *ix.second)
	}
	if b.Failed {
		next.ended = max(next.ended, b.Tick)
	} else {
		next.born = max(next.born, b.Tick)
	}
	own := next.alter(t, d, ix, &faults)
	if b.Failed { // servers refuse clients that still maintain the index
		own.since = next.Version()
		next.withdraw(ix, own)
	}
	return next.replace(t, own, &faults)
}

// withdraw makes an index one that transactions neither maintain nor read.
func (c *Catalog) withdraw(ix *Index, own *Table) {
	gone := *ix
	gone.Table, gone.hidden = own, true
	c.Indexes[ix.ID] = &gone
}

// replace returns c with the table t replaced by own.
func (c *Catalog) replace(t, own *Table, faults *faults) (*Catalog, error) {
	if err := faults.err(); err != nil {
		return nil, err
	}
	c.Tables[slices.Index(c.Tables, t)] = own
	c.byName[own.def.Name] = own
	return c, nil
}

func (c *Catalog) withTable(next *Catalog, ch Change) (*Catalog, error) {
	var faults faults
	d := *ch.Table
	t := next.add(d, &faults)
	if d.Partition.Kind == Replicated {
		faults.add("table %s: a replicated table cannot be added", d.Name)
	}
	if own := c.byName[d.Name]; own != nil && own.digest == t.digest {
		return c, nil
	} else if own != nil {
		faults.add("table %s exists, with another definition", d.Name)
	}
	if len(c.Tables) == MaxTables {
		faults.add("%d tables, limit %d (MaxTables)", len(c.Tables)+1, MaxTables)
	}
	if err := faults.err(); err != nil {
		return nil, err
	}
	next.Tables = append(next.Tables, t)
	next.byName[d.Name] = t
	return next, nil
}

func (c *Catalog) withColumn(next *Catalog, a *AddedColumn) (*Catalog, error) {
	t, err := c.Table(a.Table)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	d, col := t.def, a.Column
	for _, own := range d.Columns {
		if own.Name != col.Name {
			continue
		}
		if own.Since > 0 && own.Type == col.Type && own.Size == col.Size && bytes.Equal(own.Default, col.Default) {
			return c, nil
		}
		return nil, fmt.Errorf("%w: table %s has a column %s, with another definition", ErrSchema, a.Table, col.Name)
	}
	if !t.lay.grows {
		return nil, fmt.Errorf("%w: rows of table %s have one size: columns can be added to a table that has a Bytes column or is defined with Grows", ErrSchema, a.Table)
	}
	col.Since = d.Columns[len(d.Columns)-1].Since + 1
	d.Columns = append(slices.Clip(d.Columns), col)
	var faults faults
	own := next.alter(t, d, nil, &faults)
	own.since = next.Version()
	return next.replace(t, own, &faults)
}

// alter returns a table with another definition. Its indexes keep their numbers.
// ended, which was being built, is now the last index of the definition, or its twin, or is
// withdrawn. A twin that the definition does not have any more is withdrawn.
func (c *Catalog) alter(t *Table, d Def, ended *Index, faults *faults) *Table {
	var alone Catalog
	own := alone.add(d, faults)
	own.catalog, own.since, own.was = c, t.since, append(slices.Clip(t.was), t)
	was := append(slices.Concat([]*Index{t.index}, t.secondary), ended)
	for i, ix := range slices.Concat([]*Index{own.index}, own.secondary) {
		ix.ID = was[i].ID
		c.Indexes[ix.ID] = ix
	}
	switch {
	case t.twin == nil:
	case own.twin == nil:
		c.withdraw(t.twin, own)
	default:
		own.twin.ID, own.twin.hidden, own.twin.leaving = t.twin.ID, t.twin.hidden && t.twin != ended, t.twin.leaving
		c.Indexes[own.twin.ID] = own.twin
		if own.twin.hidden {
			own.building = append(own.building, own.twin)
		}
	}
	for _, b := range t.building {
		if b != ended && !b.twin {
			ix := own.addSecondary(b.second, faults)
			ix.ID, ix.hidden = b.ID, true
			own.building = append(own.building, ix)
			c.Indexes[ix.ID] = ix
		}
	}
	return own
}

// encoded is a catalogue in JSON.
type encoded struct {
	Tables  []Def    `json:"tables"` // of the first version
	Changes []Change `json:"changes,omitempty"`
}

// MarshalJSON encodes the definitions of the first version, and the changes.
func (c *Catalog) MarshalJSON() ([]byte, error) {
	e := encoded{Changes: c.changes}
	for _, t := range c.Tables[:c.base] {
		if len(t.was) > 0 {
			t = t.was[0]
		}
		e.Tables = append(e.Tables, t.def)
	}
	return json.Marshal(e)
}

// ParseCatalog is the inverse of MarshalJSON, for bytes from the network.
func ParseCatalog(b []byte) (*Catalog, error) {
	var e encoded
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrSchema, err)
	}
	c, err := NewCatalog(e.Tables...)
	if err != nil {
		return nil, err
	}
	return c.apply(e.Changes)
}

// Follow decodes b, the output of MarshalJSON, which must be a version of the same
// catalogue. It returns that version if it is later, else c. It shares the tables of
// c that do not change. For another catalogue it returns an ErrCatalog.
func (c *Catalog) Follow(b []byte) (*Catalog, error) {
	o, err := ParseCatalog(b)
	if err != nil {
		return nil, err
	}
	if !c.before(o) && !o.before(c) {
		return nil, fmt.Errorf("%w: another catalogue, with %d tables", ErrCatalog, len(o.Tables))
	}
	return c.apply(o.changes[min(len(c.changes), len(o.changes)):])
}

// before reports whether o is c or a later version of it.
func (c *Catalog) before(o *Catalog) bool {
	if c.base != o.base || len(c.changes) > len(o.changes) {
		return false
	}
	for i, t := range c.Tables {
		if !o.Tables[i].is(t) {
			return false
		}
	}
	return true
}

func (c *Catalog) apply(changes []Change) (*Catalog, error) {
	for _, ch := range changes {
		next, err := c.With(ch)
		if err != nil {
			return nil, err
		}
		if next == c {
			return nil, fmt.Errorf("%w: a change that changes nothing", ErrSchema)
		}
		c = next
	}
	return c, nil
}
