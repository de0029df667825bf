package tables

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// Catalog is a set of tables. Immutable and safe for concurrent use.
type Catalog struct {
	Tables  []*Table
	Indexes []*Index // primaries and secondaries, by Index.ID
	byName  map[string]*Table
}

var nameRE = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// NewCatalog checks the definitions and assigns layouts and numbers. Its error
// is the first fault it finds.
func NewCatalog(defs ...Def) (*Catalog, error) {
	if len(defs) == 0 || len(defs) > MaxTables {
		return nil, fmt.Errorf("%w: %d tables, want 1 to %d", ErrSchema, len(defs), MaxTables)
	}
	c := &Catalog{byName: map[string]*Table{}}
	for _, d := range defs {
		if _, dup := c.byName[d.Name]; dup {
			return nil, fmt.Errorf("%w: table %s is defined twice", ErrSchema, d.Name)
		}
		t, err := c.add(d)
		if err != nil {
			return nil, err
		}
		c.Tables = append(c.Tables, t)
		c.byName[d.Name] = t
	}
	return c, nil
}

// Table returns the table of a name, or ErrNoTable.
func (c *Catalog) Table(name string) (*Table, error) {
	if t, ok := c.byName[name]; ok {
		return t, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNoTable, name)
}

// MustTable is Table for names that are constants of the program; it panics on
// an unknown name.
func (c *Catalog) MustTable(name string) *Table {
	t, err := c.Table(name)
	if err != nil {
		panic(err)
	}
	return t
}

// MarshalJSON writes the definitions.
func (c *Catalog) MarshalJSON() ([]byte, error) {
	defs := make([]Def, len(c.Tables))
	for i, t := range c.Tables {
		defs[i] = t.def
	}
	return json.Marshal(defs)
}

// ParseCatalog is the inverse of MarshalJSON, for bytes from the network.
func ParseCatalog(b []byte) (*Catalog, error) {
	var defs []Def
	if err := json.Unmarshal(b, &defs); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrSchema, err)
	}
	return NewCatalog(defs...)
}

func (c *Catalog) add(d Def) (*Table, error) {
	if err := checkColumns(d); err != nil {
		return nil, err
	}
	if d.Key > StringKey {
		return nil, fmt.Errorf("%w: table %s: key kind %d", ErrSchema, d.Name, d.Key)
	}
	if err := d.Partition.check("table "+d.Name, d.Key); err != nil {
		return nil, err
	}
	if d.Primary != Hash && d.Primary != Ordered {
		return nil, fmt.Errorf("%w: table %s: primary index kind %d", ErrSchema, d.Name, d.Primary)
	}
	t := &Table{def: d, fields: map[string]Field{}}
	fields, n, h := layout(d.Columns)
	if n > MaxRowBytes {
		return nil, fmt.Errorf("%w: table %s: rows of %d bytes, want at most %d", ErrSchema, d.Name, n, MaxRowBytes)
	}
	t.rowBytes, t.heap = n, h
	for i, col := range d.Columns {
		if t.fields[col.Name] = fields[i]; col.Type == Bytes {
			t.sizes = append(t.sizes, fields[i].size)
		}
	}
	t.index = &Index{
		ID: len(c.Indexes), Name: d.Name, Ordered: d.Primary == Ordered,
		Key: d.Key, Strings: d.Key == StringKey || h != nil, RowBytes: mostBytes(n, h), Partition: d.Partition, Table: t, fields: t.fields,
	}
	c.Indexes = append(c.Indexes, t.index)
	for i := range d.Secondary {
		ix, err := t.addSecondary(&t.def.Secondary[i])
		if err != nil {
			return nil, err
		}
		ix.ID = len(c.Indexes)
		c.Indexes = append(c.Indexes, ix)
		t.secondary = append(t.secondary, ix)
	}
	return t, nil
}

// mostBytes returns the size of the largest row.
func mostBytes(fixed int, h *heap) int {
	if h != nil {
		return MaxRowBytes
	}
	return fixed
}

func checkColumns(d Def) error {
	if !nameRE.MatchString(d.Name) {
		return fmt.Errorf("%w: table name %q, want lower-case letters, digits and _", ErrSchema, d.Name)
	}
	if len(d.Columns) == 0 || len(d.Columns) > MaxColumns {
		return fmt.Errorf("%w: table %s: %d columns, want 1 to %d", ErrSchema, d.Name, len(d.Columns), MaxColumns)
	}
	seen := map[string]bool{}
	for _, col := range d.Columns {
		switch {
		case !nameRE.MatchString(col.Name) || seen[col.Name]:
			return fmt.Errorf("%w: table %s: column name %q is malformed or repeated", ErrSchema, d.Name, col.Name)
		case col.Type < Int64 || col.Type > Bytes:
			return fmt.Errorf("%w: table %s: column %s: type %d", ErrSchema, d.Name, col.Name, col.Type)
		case col.Type == Text && (col.Size < 1 || col.Size > MaxText):
			return fmt.Errorf("%w: table %s: column %s: text of %d bytes, want 1 to %d", ErrSchema, d.Name, col.Name, col.Size, MaxText)
		case col.Type == Bytes && (col.Size < 0 || col.Size > MaxRowBytes):
			return fmt.Errorf("%w: table %s: column %s: up to %d bytes, want 0 to %d", ErrSchema, d.Name, col.Name, col.Size, MaxRowBytes)
		}
		seen[col.Name] = true
	}
	return nil
}

func (t *Table) addSecondary(s *Secondary) (*Index, error) {
	where := "index " + t.def.Name + "." + s.Name
	if !nameRE.MatchString(s.Name) || t.Secondary(s.Name) != nil {
		return nil, fmt.Errorf("%w: %s: name is malformed or repeated", ErrSchema, where)
	}
	if s.Partition.Kind == Replicated || t.Replicated() {
		return nil, fmt.Errorf("%w: %s: replicated tables have no secondary indexes", ErrSchema, where)
	}
	ix := &Index{Name: t.def.Name + "." + s.Name, Ordered: true, Partition: s.Partition, Table: t, second: s, fields: map[string]Field{}}
	bits := uint(0)
	for _, p := range s.Key {
		part, err := t.keyPart(p)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: key part %q: %v", ErrSchema, where, p.Column, err)
		}
		if part.how == Sorted {
			ix.Key = StringKey
		}
		bits += p.Bits
		ix.parts = append(ix.parts, part)
	}
	if len(s.Key) == 0 || ix.Key == NumberKey && bits > 64 {
		return nil, fmt.Errorf("%w: %s: key of %d bits, want 1 to 64", ErrSchema, where, bits)
	}
	if err := s.Partition.check(where, ix.Key); err != nil {
		return nil, err
	}
	return ix, t.layoutEntry(ix, s, where)
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

func (t *Table) layoutEntry(ix *Index, s *Secondary, where string) error {
	cols := []Column{{Name: PrimaryKey, Type: Int64}}
	if t.def.Key == StringKey {
		cols[0].Type, cols[0].Size = Bytes, MaxKeyBytes
	}
	for _, name := range s.Include {
		f, ok := t.fields[name]
		if !ok {
			return fmt.Errorf("%w: %s: included column %q", ErrSchema, where, name)
		}
		cols = append(cols, Column{Name: name, Type: f.typ, Size: f.size})
	}
	fields, n, h := layout(cols)
	ix.fixed, ix.RowBytes = n, mostBytes(n, h)
	ix.Strings = ix.Key == StringKey || h != nil
	for i, col := range cols {
		ix.fields[col.Name] = fields[i]
		if i > 0 {
			ix.include = append(ix.include, copyField{t.fields[col.Name], fields[i]})
		}
	}
	return nil
}
