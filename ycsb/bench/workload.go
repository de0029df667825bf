package bench

import (
	"fmt"
	"slices"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/prop"

	"drtmx/internal/rng"
	"drtmx/ycsb/props"
)

// Bounds of a workload.
const (
	fieldsMax     = 10_000
	fieldBytesMax = 16 << 20
	scanMax       = 1 << 20
)

// operation is a kind of operation in a workload.
type operation int

const (
	opRead operation = iota
	opUpdate
	opInsert
	opScan
	opReadModifyWrite
	operations
)

// Workload is the core workload as properties describe it. It is immutable except for
// its counters, and safe for concurrent use. Each thread draws from its own stream.
type Workload struct {
	table         string
	fields        []string
	fieldLength   int
	lengths       func(*rng.Stream) int // of a field, at most fieldLength
	readAll       bool
	writeAll      bool
	dataIntegrity bool
	keys          props.Keys
	retries       int64
	retryPause    float64 // seconds

	records     int64
	insertStart int64
	insertCount int64
	weights     [operations]float64
	seed        uint64

	distribution string
	newChooser   func() chooser
	scanLength   func(*rng.Stream) int

	loaded   counter // keys of a load, in order
	inserted frontier
}

// workloads are the names of the core workload in property files.
var workloads = []string{"core", "site.ycsb.workloads.CoreWorkload", "com.yahoo.ycsb.workloads.CoreWorkload"}

// NewWorkload reads the properties of the core workload. Its error names every
// invalid property.
func NewWorkload(p *properties.Properties) (*Workload, error) {
	r := props.NewReader(p)
	w := &Workload{
		table:    r.String(prop.TableName, prop.TableNameDefault),
		readAll:  r.Bool(prop.ReadAllFields, prop.ReadALlFieldsDefault),
		writeAll: r.Bool(prop.WriteAllFields, prop.WriteAllFieldsDefault),
		keys:     props.ReadKeys(r),
		retries:  r.Int(prop.InsertionRetryLimit, prop.InsertionRetryLimitDefault, 0, props.Most),
		seed:     uint64(r.Int(props.Seed, 1, 0, props.Most)),
	}
	w.retryPause = float64(r.Int(prop.InsertionRetryInterval, prop.InsertionRetryIntervalDefault, 0, 3600))
	name := r.String(prop.Workload, "core")
	if !slices.Contains(workloads, name) {
		r.Fault("%s %q: want %s", prop.Workload, name, props.Choices(workloads))
	}
	if w.table == "" {
		r.Fault("%s has no value: want the name of a table", prop.TableName)
	}
	fields := r.Int(prop.FieldCount, prop.FieldCountDefault, 1, fieldsMax)
	for i := range fields {
		w.fields = append(w.fields, props.FieldName(int(i)))
	}
	w.readLengths(r)
	w.readProportions(r)
	w.readScanLength(r)
	w.readRange(r)
	w.readDistribution(r)
	return w, r.Err()
}

// readLengths reads the distribution of the lengths of values.
func (w *Workload) readLengths(r *props.Reader) {
	w.fieldLength = int(r.Int(prop.FieldLength, prop.FieldLengthDefault, 1, fieldBytesMax))
	n := w.fieldLength
	kind := r.OneOf(prop.FieldLengthDistribution, prop.FieldLengthDistributionDefault, "constant", "uniform", "zipfian", "histogram")
	switch kind {
	case "constant":
		w.lengths = func(*rng.Stream) int { return n }
	case "uniform":
		w.lengths = func(s *rng.Stream) int { return 1 + s.Intn(n) }
	case "zipfian":
		z, _ := rng.NewZipf(uint64(n), rng.ThetaYCSB)
		w.lengths = func(s *rng.Stream) int { return 1 + int(z.Draw(s)) }
	case "histogram":
		h, err := readHistogram(r.String(prop.FieldLengthHistogramFile, prop.FieldLengthHistogramFileDefault))
		if err != nil {
			r.Fault("%s: %w", prop.FieldLengthHistogramFile, err)
			return
		}
		w.lengths, w.fieldLength = h.draw, h.longest
	}
	if w.dataIntegrity = r.Bool(prop.DataIntegrity, prop.DataIntegrityDefault); w.dataIntegrity && kind != "constant" {
		r.Fault("%s with %s %s: want constant lengths, by which values are checked", prop.DataIntegrity, prop.FieldLengthDistribution, kind)
	}
}

func (w *Workload) readProportions(r *props.Reader) {
	sum := 0.0
	for op, p := range [operations]struct {
		name      string
		otherwise float64
	}{
		opRead:            {prop.ReadProportion, prop.ReadProportionDefault},
		opUpdate:          {prop.UpdateProportion, prop.UpdateProportionDefault},
		opInsert:          {prop.InsertProportion, prop.InsertProportionDefault},
		opScan:            {prop.ScanProportion, prop.ScanProportionDefault},
		opReadModifyWrite: {prop.ReadModifyWriteProportion, prop.ReadModifyWriteProportionDefault},
	} {
		w.weights[op] = r.Float(p.name, p.otherwise, 0, 1)
		sum += w.weights[op]
	}
	if sum == 0 {
		r.Fault("%s, %s, %s, %s and %s are all 0: want one of them above",
			prop.ReadProportion, prop.UpdateProportion, prop.InsertProportion, prop.ScanProportion, prop.ReadModifyWriteProportion)
		return
	}
	for op := range w.weights {
		w.weights[op] /= sum
	}
}

func (w *Workload) readScanLength(r *props.Reader) {
	longest := int(r.Int(prop.MaxScanLength, prop.MaxScanLengthDefault, 1, scanMax))
	w.scanLength = func(s *rng.Stream) int { return 1 + s.Intn(longest) }
	if r.OneOf(prop.ScanLengthDistribution, prop.ScanLengthDistributionDefault, "uniform", "zipfian") == "zipfian" {
		z, _ := rng.NewZipf(uint64(longest), rng.ThetaYCSB)
		w.scanLength = func(s *rng.Stream) int { return 1 + int(z.Draw(s)) }
	}
}

// readRange reads the range of the records.
func (w *Workload) readRange(r *props.Reader) {
	if !r.Has(prop.RecordCount) {
		r.Fault("%s is missing: want the number of records in the table", prop.RecordCount)
		return
	}
	w.records = r.Int(prop.RecordCount, 0, 1, props.Most)
	if w.records == 0 {
		return // a fault was reported
	}
	w.insertStart = r.Int(prop.InsertStart, prop.InsertStartDefault, 0, props.Most)
	w.insertCount = r.Int(prop.InsertCount, w.records-w.insertStart, 1, props.Most)
	if w.insertStart+w.insertCount > w.records {
		r.Fault("%s %d: want at least %s %d and %s %d together",
			prop.RecordCount, w.records, prop.InsertStart, w.insertStart, prop.InsertCount, w.insertCount)
	}
	if w.insertStart >= w.records {
		r.Fault("%s %d: want less than %s, %d", prop.InsertStart, w.insertStart, prop.RecordCount, w.records)
	}
	w.loaded.n.Store(w.insertStart)
	w.inserted.start(w.records)
}

// Table returns the name of the table that the workload uses.
func (w *Workload) Table() string { return w.table }

// Describe returns go-ycsb's line about the distribution of keys.
func (w *Workload) Describe() string {
	return fmt.Sprintf("Using request distribution '%s' a keyrange of [%d %d]",
		w.distribution, w.insertStart, w.insertStart+w.insertCount-1)
}

// key returns the key of record n.
func (w *Workload) key(n int64) string { return w.keys.Name(n) }
