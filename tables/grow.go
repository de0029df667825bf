package tables

import "strconv"

// A column that is added comes behind all others, in a row and in the fixed
// part of the row. A row keeps the format in which it was written. The end of
// its fixed part tells the format: there its values begin, or the row ends. A
// transaction brings the rows that it reads into the format of the table that
// its body uses, and the rows that it writes into the present one.

// addedField is a column that was added, with the value that it has in rows
// from before.
type addedField struct {
	Field
	value []byte
}

// defaultFits reports whether the default of a column is a value of its type.
func (c *Column) defaultFits() bool {
	d := string(c.Default)
	if c.Default == nil {
		return true
	}
	bits := map[Type]int{Int64: 64, Int32: 32, Int16: 16}[c.Type]
	var err error
	switch {
	case bits > 0:
		_, err = strconv.ParseInt(d, 10, bits)
	case c.Type == Float64:
		_, err = strconv.ParseFloat(d, 64)
	default:
		return len(d) <= c.Size || c.Type == Bytes && c.Size == 0 && len(d) <= MaxRowBytes/2
	}
	return err == nil
}

// set gives the column its default.
func (a *addedField) set(r *Row) {
	if a.value == nil {
		return
	}
	switch a.typ {
	case Text:
		r.SetText(a.Field, a.value)
	case Bytes:
		r.SetBytes(a.Field, a.value)
	case Float64:
		v, _ := strconv.ParseFloat(string(a.value), 64) // checked by defaultFits
		r.SetFloat(a.Field, v)
	default:
		v, _ := strconv.ParseInt(string(a.value), 10, 64)
		r.SetInt(a.Field, v)
	}
}

// format returns the bytes of the fixed part of a row, which is of any format of
// the layout.
func (l *layout) format(r Row) int {
	for _, fixed := range l.formats {
		if l.begin(r, fixed) == fixed {
			return fixed
		}
	}
	return l.fixed
}

// begin returns where the values of a row begin whose fixed part has at least
// fixed bytes, or its length if it has none among the columns of that part.
func (l *layout) begin(r Row, fixed int) int {
	begin := len(r)
	for _, at := range l.at {
		if at >= fixed || fixed > len(r) {
			break
		}
		if off, n := (Field{off: at}).extent(r); n > 0 {
			begin = min(begin, off)
		}
	}
	return begin
}

// convert returns a row whose fixed part has from bytes in the format of l,
// which has more columns or fewer. It appends to arena, unless the row has that
// format. Values lie inside a row that was checked; of another row they are
// lost.
func (l *layout) convert(arena []byte, r Row, from int) (_ []byte, converted Row) {
	if from == l.fixed || from > len(r) {
		return arena, r
	}
	start := len(arena)
	both := min(from, l.fixed)
	arena = append(arena, r[:both]...)
	arena = append(arena, make([]byte, l.fixed-both)...)
	for _, at := range l.at {
		if at >= from {
			break
		}
		off, n := Field{off: at}.extent(r)
		if n == 0 || off > len(r)-n {
			setExtent(arena[start:], at, 0, 0)
			continue
		}
		setExtent(arena[start:], at, len(arena)-start, n)
		arena = append(arena, r[off:off+n]...)
	}
	arena = append(arena, make([]byte, roundUp(len(arena)-start)-(len(arena)-start))...)
	converted = Row(arena[start:len(arena):len(arena)])
	for i := range l.added {
		if a := &l.added[i]; a.off >= from {
			a.set(&converted)
		}
	}
	return arena, converted
}

// Grown returns a row of the table, read or written before columns were added,
// in the present format. It appends to arena what it makes, and returns any
// other row as it is.
func (t *Table) Grown(arena []byte, r Row) ([]byte, Row) {
	if t.lay.formats == nil {
		return arena, r
	}
	return t.lay.convert(arena, r, t.lay.format(r))
}

// Old reports whether a row that fits the table as o was written for it before
// columns were added.
func (t *Table) Old(o *Table) bool { return t != o && t.lay.fixed != o.lay.fixed }

// SeenAs returns a row of t, in the present format, as a program sees it that
// uses the earlier definition o. It appends to arena as Grown does.
func (t *Table) SeenAs(o *Table, arena []byte, r Row) ([]byte, Row) {
	return o.lay.convert(arena, r, t.lay.fixed)
}

// FromOld returns a row that was written with the earlier definition o in the
// present format.
func (t *Table) FromOld(o *Table, r Row) Row {
	_, row := t.lay.convert(nil, r, o.lay.fixed)
	return row
}

// Merged returns a row that was written with the earlier definition o in the
// present format, with what present, the row that it replaces, has in the
// columns that o lacks.
func (t *Table) Merged(o *Table, r, present Row) Row {
	row := t.FromOld(o, r)
	for i := range t.lay.added {
		if a := &t.lay.added[i]; a.off >= o.lay.fixed {
			copyColumn(&row, a.Field, present, a.Field)
		}
	}
	return row
}

// Grows reports whether columns may be added to the table.
func (t *Table) Grows() bool { return t.lay.grows }

// Aged reports whether rows of the index may have been written before columns
// were added.
func (ix *Index) Aged() bool { return ix.second == nil && ix.Table.lay.formats != nil }

// Since returns the version of the catalogue that changed the table last.
// Transactions of an earlier version must not write it.
func (t *Table) Since() int { return t.since }

// copyColumn sets a column of one row from one of another.
func copyColumn(dst *Row, to Field, src Row, from Field) {
	switch from.typ {
	case Text:
		dst.SetText(to, src.Text(from))
	case Bytes:
		dst.SetBytes(to, src.Bytes(from))
	case Float64:
		dst.SetFloat(to, src.Float(from))
	default:
		dst.SetInt(to, src.Int(from))
	}
}
