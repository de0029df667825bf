package bench

import (
	"fmt"
	"time"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/prop"
	"github.com/pingcap/go-ycsb/pkg/util"

	"drtmx/ycsb/props"
)

// Phase says what a run does. Its values are the names of go-ycsb's commands.
type Phase string

// Phases.
const (
	Load Phase = "load" // insert the records
	Run  Phase = "run"  // the workload's operations
)

// Bounds of a plan.
const (
	MaxThreads  = 4096
	batchMax    = 1 << 16
	secondsMax  = 7 * 24 * 3600
	targetMax   = 1_000_000_000
	logInterval = 10 // seconds
)

// Plan is one checked phase. It can run once.
type Plan struct {
	phase    Phase
	workload *Workload
	threads  int
	target   int64 // operations per second; 0: as many as possible
	batch    int
	count    int64 // operations; 0: until the time is up
	limit    time.Duration
	warmup   time.Duration
	interval time.Duration // between reports during the run; 0: none
	silent   bool          // do not report failed operations
	separate bool
	report   bool
	raw      bool
	rawFile  string
	style    string
}

// NewPlan reads the properties of a phase. Its error names every invalid property.
func NewPlan(p *properties.Properties, phase Phase) (*Plan, error) {
	w, err := NewWorkload(p)
	r := props.NewReader(p)
	r.Join(err)
	plan := &Plan{
		phase: phase, workload: w,
		threads:  int(r.Int(prop.ThreadCount, 1, 1, MaxThreads)),
		target:   r.Int(prop.Target, 0, 0, targetMax),
		batch:    int(r.Int(prop.BatchSize, int64(prop.DefaultBatchSize), 1, batchMax)),
		limit:    time.Duration(r.Int(prop.MaxExecutiontime, 0, 0, secondsMax)) * time.Second,
		interval: time.Duration(r.Int(prop.LogInterval, logInterval, 0, secondsMax)) * time.Second,
		silent:   r.Bool(prop.Silence, prop.SilenceDefault),
		separate: r.OneOf(props.ReadModifyWrite, "transaction", "transaction", "separate") == "separate",
		report:   r.Bool(props.Report, true),
		raw:      r.OneOf(prop.MeasurementType, prop.MeasurementTypeDefault, "histogram", "raw", "csv") != "histogram",
		rawFile:  r.String(prop.MeasurementRawOutputFile, ""),
		style:    r.OneOf(prop.OutputStyle, util.OutputStylePlain, util.OutputStylePlain, util.OutputStyleTable, util.OutputStyleJson),
	}
	if phase == Run {
		plan.warmup = time.Duration(r.Int(prop.WarmUpTime, 0, 0, secondsMax)) * time.Second
	}
	plan.readCount(r)
	if r.Bool(prop.MeasurementHistogramPercentileExport, prop.MeasurementHistogramPercentileExportDefault) {
		r.Fault("%s is not supported: use %s=raw for all latencies", prop.MeasurementHistogramPercentileExport, prop.MeasurementType)
	}
	return plan, r.Err()
}

// readCount reads the number of operations, and checks it against other properties.
func (p *Plan) readCount(r *props.Reader) {
	if p.phase == Load {
		p.count = p.workload.insertCount
		p.checkThreads(r, prop.InsertCount)
		return
	}
	p.count = r.Int(prop.OperationCount, 0, 0, props.Most)
	if p.count == 0 && p.limit == 0 {
		r.Fault("%s is missing or 0: want the number of operations, or %s", prop.OperationCount, prop.MaxExecutiontime)
	}
	p.checkThreads(r, prop.OperationCount)
	if w := p.workload.weights; p.batch > 1 && w[opScan]+w[opReadModifyWrite] > 0 {
		r.Fault("%s %d with %s or %s: want 1, for these have no batches",
			prop.BatchSize, p.batch, prop.ScanProportion, prop.ReadModifyWriteProportion)
	}
}

func (p *Plan) checkThreads(r *props.Reader, name string) {
	if p.count > 0 && p.count < int64(p.threads) {
		r.Fault("%s %d: want at most one for each of the %d operations (%s)", prop.ThreadCount, p.threads, p.count, name)
	}
}

// Unbounded removes the limit of time. It is for a load before a run, because the
// limit is meant for the run.
func (p *Plan) Unbounded() { p.limit = 0 }

// For makes the plan that of a run of so many threads, a warm-up, and a measured interval
// that ends after its length or a number of operations, whichever is first; 0 is no bound.
// It fails with props.ErrProperty if the workload does not allow that.
func (p *Plan) For(threads int, warmup, length time.Duration, operations int64) error {
	if threads < 1 || threads > MaxThreads {
		return fmt.Errorf("%w: %d threads: want 1 to %d", props.ErrProperty, threads, MaxThreads)
	}
	if operations > 0 && operations < int64(threads) {
		return fmt.Errorf("%w: %d threads: want at most one for each of the %d operations", props.ErrProperty, threads, operations)
	}
	p.threads, p.warmup, p.limit, p.count, p.interval = threads, warmup, length, operations, 0
	return nil
}

// Operations returns the number of operations that ends the run; 0 is no bound.
func (p *Plan) Operations() int64 { return p.count }

// Inserts reports whether the operations of the plan's workload change which records
// there are.
func (p *Plan) Inserts() bool { return p.phase == Load || p.workload.weights[opInsert] > 0 }

// InsertShare returns the share of inserts among the operations of the plan's workload in a run.
func (p *Plan) InsertShare() float64 { return p.workload.weights[opInsert] }

// Workload returns the workload of the plan.
func (p *Plan) Workload() *Workload { return p.workload }
