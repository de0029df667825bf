// Package usertable defines YCSB's table in drtmx: a string key, and one column
// of variable length for each field; or, with drtmx.keys=number, a number and columns of
// one length. A data server gets the table's catalogue
// when it starts, encoded in the name of its workload.
package usertable

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/prop"

	"drtmx/tables"
	"drtmx/ycsb/props"
)

// Words of properties.
const (
	Ordered = "ordered"
	Hash    = "hash"
	Rolex   = "rolex"     // ordered
	Fine    = "finestore" // ordered
	Range   = "range"
	Text    = "string"
	Number  = "number"
	Spread  = "spread" // numbers
	NoTwin  = "none"
)

// Layout has the properties of the table.
type Layout struct {
	Name       string
	Fields     int
	FieldBytes int // length of the longest field that the workload writes, 0 if unknown
	Primary    string
	Partition  string
	Twin       tables.Twin
	Keys       props.Keys
	Numbers    bool // the keys of the table are the numbers in the keys of records

	spread         bool  // by a permutation of all number
	scans          bool  // the workload has scans
	first, records int64 // the records of a load
	loads          int64 // how many records it inserts, 0 if the properties do not say
	meanBytes      int   // least mean length of a field that the workload writes
	constant       bool  // all fields have this length
}

// Read reads the layout; its error names every invalid property.
func Read(p *properties.Properties) (*Layout, error) {
	r := props.NewReader(p)
	l := &Layout{
		Name:      r.String(prop.TableName, prop.TableNameDefault),
		Fields:    int(r.Int(prop.FieldCount, prop.FieldCountDefault, 1, tables.MaxColumns)),
		Primary:   r.OneOf(props.Primary, Ordered, Ordered, Hash, Rolex, Fine),
		Partition: r.OneOf(props.Partitioning, "", Range, Hash),
		Keys:      props.ReadKeys(r),
	}
	if twin := r.OneOf(props.Twin, NoTwin, NoTwin, string(tables.TwinLocal), string(tables.TwinSync), string(tables.TwinNext)); twin != NoTwin {
		if l.Twin = tables.Twin(twin); l.Primary != Hash {
			r.Fault("%s %s with %s %s: want %s=%s, for the other indexes have an order", props.Twin, twin, props.Primary, l.Primary, props.Primary, Hash)
		}
	}
	kind := r.OneOf(props.KeyKind, Text, Text, Number, Spread)
	l.Numbers, l.spread = kind != Text, kind == Spread
	l.meanBytes = 1
	lengths := r.OneOf(prop.FieldLengthDistribution, prop.FieldLengthDistributionDefault, "constant", "uniform", "zipfian", "histogram")
	if lengths != "histogram" {
		l.FieldBytes = int(r.Int(prop.FieldLength, prop.FieldLengthDefault, 1, tables.MaxRowBytes))
	}
	if l.Numbers && l.FieldBytes == 0 {
		r.Fault("%s %s with %s %s: want another distribution, for the longest field must be known", props.KeyKind, kind, prop.FieldLengthDistribution, lengths)
	}
	switch lengths {
	case "constant":
		l.meanBytes, l.constant = l.FieldBytes, true
	case "uniform":
		l.meanBytes = (1 + l.FieldBytes) / 2
	}
	if (l.Primary == Rolex || l.Primary == Fine) && !l.Numbers {
		r.Fault("%s %s with %s %s: want %s=%s, for the keys of the engine are numbers", props.Primary, l.Primary, props.KeyKind, Text, props.KeyKind, Number)
	}
	if n := l.Fields * l.FieldBytes; n > tables.MaxRowBytes {
		r.Fault("%s %d and %s %d: want records of at most %d bytes", prop.FieldCount, l.Fields, prop.FieldLength, l.FieldBytes, tables.MaxRowBytes)
	}
	l.first = r.Int(prop.InsertStart, prop.InsertStartDefault, 0, props.Most)
	l.records = manyRecords
	if r.Has(prop.RecordCount) {
		l.records = max(r.Int(prop.RecordCount, 0, 0, props.Most)-l.first, 1)
		l.loads = r.Int(prop.InsertCount, l.records, 0, props.Most)
	}
	switch {
	case l.Partition == "" && l.Primary == Hash && l.Twin == "":
		l.Partition = Hash
	case l.Partition == "":
		l.Partition = Range
	case l.Partition == Range && l.Primary == Hash && l.Twin == "":
		r.Fault("%s %s with %s %s: want %s=%s", props.Partitioning, Range, props.Primary, Hash, props.Partitioning, Hash)
	}
	l.scans = r.Float(prop.ScanProportion, prop.ScanProportionDefault, 0, 1) > 0
	if l.Primary == Hash && l.Twin == "" && l.scans {
		r.Fault("%s %s with %s above 0: want %s, or a %s, for a hash index has no order", props.Primary, Hash, prop.ScanProportion, Ordered, props.Twin)
	}
	return l, r.Err()
}

// Catalog returns the catalogue for a cluster of the given number of
// partitions.
func (l *Layout) Catalog(partitions int) (*tables.Catalog, error) {
	d := tables.Def{
		Name: l.Name, Key: tables.StringKey, Primary: tables.Ordered,
		Partition: tables.Partitioning{Kind: tables.ByHash},
	}
	switch l.Primary {
	case Hash:
		d.Primary, d.Twin = tables.Hash, l.Twin
	case Rolex:
		d.Engine = tables.Rolex
	case Fine:
		d.Engine = tables.FineStore
	}
	if l.Partition == Range && partitions > 1 {
		d.Partition = tables.Partitioning{Kind: tables.ByRange, Bounds: l.bounds(partitions)}
	}
	field := tables.Column{Type: l.fieldType()}
	if l.Numbers {
		d.Key, field.Size = tables.NumberKey, l.FieldBytes // rows of one size
	}
	for i := range l.Fields {
		field.Name = props.FieldName(i)
		d.Columns = append(d.Columns, field)
	}
	return tables.NewCatalog(d)
}

// fieldType is the type of the columns of fields.
func (l *Layout) fieldType() tables.Type {
	if l.Numbers {
		return tables.Text
	}
	return tables.Bytes
}

// Value returns the value of a field, as a view of the row.
func (l *Layout) Value(row tables.Row, f tables.Field) []byte {
	if l.Numbers {
		return row.Text(f)
	}
	return row.Bytes(f)
}

// Set sets the value of a field.
func (l *Layout) Set(row *tables.Row, f tables.Field, v []byte) { set(row, l.fieldType(), f, v) }

func set(row *tables.Row, t tables.Type, f tables.Field, v []byte) {
	if t == tables.Text {
		row.SetText(f, v)
	} else {
		row.SetBytes(f, v)
	}
}

// Key returns the key in the table of the record with a key of YCSB. It fails with
// tables.ErrKey if the table has numbers and the key is not the prefix and a number.
func (l *Layout) Key(name string) (tables.Key, error) {
	if !l.Numbers {
		return tables.Str(name), nil
	}
	digits, found := strings.CutPrefix(name, l.Keys.Prefix)
	n, err := strconv.ParseUint(digits, 10, 64)
	if !found || err != nil {
		return tables.Key{}, fmt.Errorf("%w: %q, want %s and a number below 2^64 with %s=%s", tables.ErrKey, name, l.Keys.Prefix, props.KeyKind, Number)
	}
	if l.spread {
		n = tables.Mix(n)
	}
	return tables.Num(n), nil
}

// Probe returns the ith of any keys, whether there are such records or not.
func (l *Layout) Probe(i int) tables.Key {
	if l.Numbers {
		return tables.Num(uint64(i))
	}
	return tables.Str(strconv.Itoa(i))
}

// samples is the number of keys sampled to cut the key space.
const samples = 1 << 15

// manyRecords is used if the number of records is not known.
const manyRecords = 1 << 22

// bounds cuts the keys of a load into equal parts. The sample is spread over
// all records even if keys are hashed: the hash, FNV, leaves records whose
// numbers differ in the last byte alone close together.
func (l *Layout) bounds(parts int) []tables.Key {
	var keys []tables.Key
	n := min(l.records, samples)
	for i := range n {
		name := l.Keys.Name(l.first + int64(float64(l.records)*float64(i)/float64(n)))
		if k, err := l.Key(name); err == nil { // it always is
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, tables.Key.Compare)
	keys = slices.Compact(keys)
	var cuts []tables.Key
	for i := 1; i < parts && i < len(keys); i++ {
		cuts = append(cuts, keys[max(len(keys)*i/parts, i)])
	}
	return cuts
}

// workloadPrefix begins the name of a workload that carries a catalogue.
const workloadPrefix = "ycsb "

// WorkloadName returns the name that carries a catalogue to data servers.
func WorkloadName(c *tables.Catalog) (string, error) {
	b, err := c.MarshalJSON()
	return workloadPrefix + string(b), err
}

// IsWorkload reports whether a workload's name is one of this package.
func IsWorkload(name string) bool { return strings.HasPrefix(name, workloadPrefix) }

// ParseWorkload returns the catalogue in a workload's name.
func ParseWorkload(name string) (*tables.Catalog, error) {
	text, ok := strings.CutPrefix(name, workloadPrefix)
	if !ok {
		return nil, fmt.Errorf("workload %q is not YCSB's", name)
	}
	return tables.ParseCatalog([]byte(text))
}

// Fits returns the table of a cluster's catalogue that can serve the layout, or an
// error that explains why it cannot. where names the cluster in the error.
func (l *Layout) Fits(c *tables.Catalog, where string, primaryGiven bool) (*tables.Table, error) {
	t, err := c.Table(l.Name)
	if err != nil {
		return nil, fmt.Errorf("%s has no table %s: want a cluster started by drtmx serve --workload ycsb", where, l.Name)
	}
	d := t.Def()
	mismatch := func(has, want string, args ...any) error {
		return fmt.Errorf("table %s of %s %s, the properties want %s", l.Name, where, has, fmt.Sprintf(want, args...))
	}
	switch numbers := d.Key == tables.NumberKey; {
	case numbers && !l.Numbers:
		return nil, mismatch("has numbers for keys", "%s %s", props.KeyKind, Text)
	case !numbers && l.Numbers:
		return nil, mismatch("has strings for keys", "%s %s", props.KeyKind, Number)
	}
	for i := range l.Fields {
		if i >= len(d.Columns) {
			return nil, mismatch(fmt.Sprintf("has %d fields", len(d.Columns)), "%s %d", prop.FieldCount, l.Fields)
		}
		col := d.Columns[i]
		if col.Name != props.FieldName(i) || col.Type != l.fieldType() {
			return nil, mismatch(fmt.Sprintf("has a column %s (%v)", col.Name, col.Type), "%s (%v)", props.FieldName(i), l.fieldType())
		}
		if col.Size > 0 && col.Size < l.FieldBytes {
			return nil, mismatch(fmt.Sprintf("has fields of at most %d bytes", col.Size), "%s %d", prop.FieldLength, l.FieldBytes)
		}
	}
	has := Ordered
	switch {
	case d.Primary == tables.Hash:
		has = Hash
	case d.Engine == tables.Rolex:
		has = Rolex
	case d.Engine == tables.FineStore:
		has = Fine
	}
	if has == Hash && d.Twin == "" && l.scans {
		return nil, mismatch("has the primary index "+has, "%s above 0", prop.ScanProportion)
	}
	if primaryGiven && has != l.Primary {
		return nil, mismatch("has the primary index "+has, "%s %s", props.Primary, l.Primary)
	}
	return t, nil
}
