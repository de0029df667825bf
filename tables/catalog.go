package tables

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/zeebo/xxh3"
)

// Catalog is one version of a set of tables. It is immutable and safe for concurrent
// use. A change makes the next version, see With. Both versions share the tables that
// do not change.
type Catalog struct {
	Tables  []*Table
	Indexes []*Index // primaries and secondaries, by Index.ID
	byName  map[string]*Table
	base    int // tables of the first version
	born    uint64
	ended   uint64 // see EndedAt
	needs   int    // see ReadersNeed
	changes []Change
}

var nameRE = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// NewCatalog makes a catalogue: it checks the definitions and assigns layouts and
// numbers. Its error joins all faults that it finds.
func NewCatalog(defs ...Def) (*Catalog, error) {
	if len(defs) == 0 || len(defs) > MaxTables {
		return nil, fmt.Errorf("%w: %d tables, want 1 to %d", ErrSchema, len(defs), MaxTables)
	}
	c := &Catalog{byName: map[string]*Table{}, base: len(defs)}
	var faults faults
	for _, d := range defs {
		if _, dup := c.byName[d.Name]; dup {
			faults.add("table %s is defined twice", d.Name)
			continue
		}
		t := c.add(d, &faults)
		c.Tables = append(c.Tables, t)
		c.byName[d.Name] = t
	}
	if err := faults.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// faults collects the faults of a set of definitions.
type faults []error

func (f *faults) add(format string, args ...any) {
	*f = append(*f, fmt.Errorf("%w: "+format, append([]any{ErrSchema}, args...)...))
}

func (f faults) err() error { return errors.Join(f...) }

// Table returns the table with a name, or ErrNoTable.
func (c *Catalog) Table(name string) (*Table, error) {
	if t, ok := c.byName[name]; ok {
		return t, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNoTable, name)
}

// MustTable does the same as Table, for names that are constants of the program. It
// panics on an unknown name.
func (c *Catalog) MustTable(name string) *Table {
	t, err := c.Table(name)
	if err != nil {
		panic(err)
	}
	return t
}

// Resolve returns the catalogue's own table for t: t itself, or the table with the same
// name if its definition is the same, or was the same before columns were added.
// Otherwise it returns an ErrCatalog.
func (c *Catalog) Resolve(t *Table) (*Table, error) {
	if t != nil && t.catalog == c {
		return t, nil
	}
	return c.adopt(t)
}

func (c *Catalog) adopt(t *Table) (*Table, error) {
	if t == nil {
		return nil, fmt.Errorf("%w: there is no table (nil)", ErrCatalog)
	}
	if id := t.index.ID; id < len(c.Indexes) { // its place if the tables before it are the same, too
		if own := c.Indexes[id].Table; own.is(t) {
			return own, nil
		}
	}
	own, ok := c.byName[t.def.Name]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: table %s", ErrCatalog, t.def.Name)
	case !own.is(t):
		return nil, fmt.Errorf("%w: table %s, whose definition differs", ErrCatalog, t.def.Name)
	}
	return own, nil
}

// is reports whether o is the table, in its present definition or an earlier one.
func (t *Table) is(o *Table) bool {
	if t == o || t.digest == o.digest {
		return true
	}
	for _, was := range t.was {
		if was.digest == o.digest {
			return true
		}
	}
	return false
}

// ResolveIndex does the same as Resolve for an index.
func (c *Catalog) ResolveIndex(ix *Index) (*Index, error) {
	if ix != nil && ix.Table.catalog == c {
		return ix, nil
	}
	if ix == nil {
		return nil, fmt.Errorf("%w: there is no index (nil)", ErrCatalog)
	}
	if ix.ID < len(c.Indexes) && c.Indexes[ix.ID] == ix {
		return ix, nil
	}
	t, err := c.adopt(ix.Table)
	switch {
	case err != nil:
		return nil, err
	case ix.twin && t.twin != nil:
		return t.twin, nil
	case ix.second == nil:
		return t.index, nil
	}
	own := t.Secondary(ix.second.Name)
	if own == nil {
		return nil, fmt.Errorf("%w: index %s", ErrCatalog, ix.Name)
	}
	return own, nil
}

// add makes a table with its layout and number. If it adds faults the table is not
// usable.
func (c *Catalog) add(d Def, faults *faults) *Table {
	checkColumns(d, faults)
	if d.Key > StringKey {
		faults.add("table %s: key kind %d", d.Name, d.Key)
	}
	if err := d.Partition.check("table "+d.Name, d.Key); err != nil {
		*faults = append(*faults, err)
	}
	if d.Primary != Hash && d.Primary != Ordered {
		faults.add("table %s: primary index kind %d", d.Name, d.Primary)
	}
	if d.LoadFill != 0 && (d.LoadFill < 50 || d.LoadFill > 100) {
		faults.add("table %s: load fill of %d percent, want 50 to 100, or 0 for 100", d.Name, d.LoadFill)
	}
	if d.Engine == XStore {
		d.Engine = "" // two names of one definition
	}
	t := &Table{def: d, fields: map[string]Field{}, catalog: c}
	fields, l := newLayout(d.Columns)
	l.grows = l.grows || d.Grows
	if l.fixed > MaxRowBytes {
		faults.add("table %s: rows of %d bytes, want at most %d", d.Name, l.fixed, MaxRowBytes)
	}
	t.lay = l
	for i, col := range d.Columns {
		t.fields[col.Name] = fields[i]
	}
	t.index = &Index{
		ID: len(c.Indexes), Name: d.Name, Ordered: d.Primary == Ordered,
		Key: d.Key, Strings: d.Key == StringKey || l.grows, RowBytes: l.mostBytes(), Partition: d.Partition, Table: t, fields: t.fields,
		Engine: cmp.Or(d.Engine, XStore),
	}
	t.index.checkEngine(faults)
	t.checkTwin(faults)
	c.Indexes = append(c.Indexes, t.index)
	for i := range d.Secondary {
		ix := t.addSecondary(&t.def.Secondary[i], faults)
		ix.ID = len(c.Indexes)
		c.Indexes = append(c.Indexes, ix)
		t.secondary = append(t.secondary, ix)
	}
	if d.Twin != "" {
		t.twin = &Index{
			ID: len(c.Indexes), Name: d.Name + "." + TwinName, Ordered: true, Key: d.Key, Strings: d.Key == StringKey,
			RowBytes: twinRowBytes, Partition: d.Partition, Table: t, Engine: XStore, twin: true,
		}
		t.twin.Partition.next = d.Twin != TwinLocal
		c.Indexes = append(c.Indexes, t.twin)
	}
	if b, err := json.Marshal(d); err != nil {
		*faults = append(*faults, fmt.Errorf("%w: table %s: %w", ErrSchema, d.Name, err))
	} else {
		t.digest = xxh3.Hash128(b)
	}
	return t
}

// checkEngine adds the reasons for which the engine cannot have the primary index.
func (ix *Index) checkEngine(faults *faults) {
	bad := func(is bool, format string, args ...any) {
		if is {
			faults.add("table %s: engine %s "+format, append([]any{ix.Name, ix.Engine}, args...)...)
		}
	}
	switch ix.Engine {
	case XStore:
	case Rolex, FineStore:
		bad(!ix.Ordered, "has ordered primary indexes only")
		bad(ix.Key != NumberKey, "has number keys only")
		bad(ix.Strings && ix.Key == NumberKey, "has rows of one size only: no Bytes column, and no Grows")
		rolex := ix.Engine == Rolex
		bad(rolex && !ix.Strings && ix.RowBytes > MaxRolexRowBytes, "has rows of at most %d bytes, and these have %d", MaxRolexRowBytes, ix.RowBytes)
		bad(rolex && ix.Table.def.LoadFill != 0, "has no load fill")
	default:
		faults.add("table %s: engine %q, want %q, %q or %q", ix.Name, ix.Engine, XStore, Rolex, FineStore)
	}
}

// TwinName is the name of a twin in its table. A secondary index cannot have it.
const TwinName = "_twin"

// twinRowBytes is the size of an entry of a twin: one word, which may say where the row is.
const twinRowBytes = 8

// checkTwin adds the reasons for which the table cannot have its twin.
func (t *Table) checkTwin(faults *faults) {
	d := &t.def
	switch d.Twin {
	case "":
		return
	case TwinLocal, TwinSync, TwinNext:
	default:
		faults.add("table %s: twin %q, want %q, %q or %q", d.Name, d.Twin, TwinLocal, TwinSync, TwinNext)
	}
	if d.Primary != Hash {
		faults.add("table %s: a twin of an index that is ordered itself", d.Name)
	}
	if t.Replicated() {
		faults.add("table %s: a twin of a replicated table", d.Name)
	}
}

// mostBytes returns the size of the largest possible row.
func (l *layout) mostBytes() int {
	if l.grows {
		return MaxRowBytes
	}
	return l.fixed
}

func checkColumns(d Def, faults *faults) {
	if !nameRE.MatchString(d.Name) {
		faults.add("table name %q, want lower-case letters, digits and _", d.Name)
	}
	if len(d.Columns) == 0 || len(d.Columns) > MaxColumns {
		faults.add("table %s: %d columns, want 1 to %d", d.Name, len(d.Columns), MaxColumns)
	}
	seen, since := map[string]bool{}, 0
	for i, col := range d.Columns {
		switch {
		case !nameRE.MatchString(col.Name) || seen[col.Name]:
			faults.add("table %s: column name %q is malformed or repeated", d.Name, col.Name)
		case col.Type < Int64 || col.Type > Bytes:
			faults.add("table %s: column %s: type %d", d.Name, col.Name, col.Type)
		case col.Type == Text && (col.Size < 1 || col.Size > MaxText):
			faults.add("table %s: column %s: text of %d bytes, want 1 to %d", d.Name, col.Name, col.Size, MaxText)
		case col.Since < since || col.Since > since+1 || i == 0 && col.Since > 0:
			faults.add("table %s: column %s: since %d, after %d", d.Name, col.Name, col.Since, since)
		case col.Since == 0 && col.Default != nil:
			faults.add("table %s: column %s: a default of a column that is not added", d.Name, col.Name)
		case col.Since > 0 && !col.defaultFits():
			faults.add("table %s: column %s: default %q of type %v", d.Name, col.Name, col.Default, col.Type)
		case col.Type == Bytes && (col.Size < 0 || col.Size > MaxRowBytes):
			faults.add("table %s: column %s: up to %d bytes, want 0 to %d", d.Name, col.Name, col.Size, MaxRowBytes)
		}
		seen[col.Name], since = true, col.Since
	}
}

func (t *Table) addSecondary(s *Secondary, faults *faults) *Index {
	where := "index " + t.def.Name + "." + s.Name
	if !nameRE.MatchString(s.Name) || t.Secondary(s.Name) != nil {
		faults.add("%s: name is malformed or repeated", where)
	}
	if s.Partition.Kind == Replicated || t.Replicated() {
		faults.add("%s: replicated tables have no secondary indexes", where)
	}
	ix := &Index{Name: t.def.Name + "." + s.Name, Ordered: true, Engine: XStore, Partition: s.Partition, Table: t, second: s, fields: map[string]Field{}}
	bits, good := uint(0), true
	for _, p := range s.Key {
		part, err := t.keyPart(p)
		if err != nil {
			faults.add("%s: key part %q: %v", where, p.Column, err)
			good = false
		}
		if part.how == Sorted {
			ix.Key = StringKey
		}
		bits += p.Bits
		ix.parts = append(ix.parts, part)
	}
	if good && (len(s.Key) == 0 || ix.Key == NumberKey && bits > 64) {
		faults.add("%s: key of %d bits, want 1 to 64", where, bits)
	}
	if err := s.Partition.check(where, ix.Key); good && err != nil {
		*faults = append(*faults, err)
	}
	t.layoutEntry(ix, s, where, faults)
	return ix
}

// keyPart checks one part of a secondary key.
func (t *Table) keyPart(p KeyPart) (keyPart, error) {
	part := keyPart{bits: p.Bits, how: p.How}
	if p.Column == PrimaryKey {
		if part.key = true; p.How != Sorted || p.Bits != 0 {
			return part, errors.New("the primary key can only be Sorted")
		}
		return part, nil
	}
	var ok bool
	if part.f, ok = t.fields[p.Column]; !ok {
		return part, errors.New("no such column")
	}
	long := part.f.typ == Text || part.f.typ == Bytes
	switch {
	case p.How < Value || p.How > Sorted:
		return part, fmt.Errorf("transform %d", p.How)
	case part.f.typ == Float64:
		return part, errors.New("a floating-point number")
	case p.How == Sorted && p.Bits != 0, p.How != Sorted && (p.Bits < 1 || p.Bits > 64):
		return part, fmt.Errorf("%d bits", p.Bits)
	case long && p.How != Digest && p.How != Sorted:
		return part, errors.New("text has no value to put into bits: want Digest or Sorted")
	}
	return part, nil
}

func (t *Table) layoutEntry(ix *Index, s *Secondary, where string, faults *faults) {
	cols := []Column{{Name: PrimaryKey, Type: Int64}}
	if t.def.Key == StringKey {
		cols[0].Type, cols[0].Size = Bytes, MaxKeyBytes
	}
	for _, name := range s.Include {
		f, ok := t.fields[name]
		if !ok {
			faults.add("%s: included column %q: no such column", where, name)
			continue
		}
		cols = append(cols, Column{Name: name, Type: f.typ, Size: f.size})
	}
	fields, l := newLayout(cols)
	ix.lay, ix.RowBytes = l, l.mostBytes()
	ix.Strings = ix.Key == StringKey || l.varies()
	for i, col := range cols {
		ix.fields[col.Name] = fields[i]
		if i > 0 {
			ix.include = append(ix.include, copyField{t.fields[col.Name], fields[i]})
		}
	}
}
