package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"drtmx/index"
	"drtmx/txn/stats"
)

var indexLabels = []string{"server", "partition", "table", "index"}

var (
	indexRows      = gauge("drtmx_index_rows", "Rows in the index.", indexLabels...)
	indexTombs     = gauge("drtmx_index_tombstones", "Deletions that the index still has a trace of, for snapshots of the past.", indexLabels...)
	indexRowBytes  = gauge("drtmx_index_row_bytes", "Bytes of row blocks, or of leaves.", indexLabels...)
	indexBytes     = gauge("drtmx_index_structure_bytes", "Bytes of the structures that find rows: buckets and directory, or inner nodes and models.", indexLabels...)
	indexInner     = gauge("drtmx_index_inner_node_bytes", "Bytes of the inner nodes of an ordered index, which clients do not read.", indexLabels...)
	indexLeaves    = gauge("drtmx_index_leaves", "Leaves of an ordered index.", indexLabels...)
	indexSplits    = counter("drtmx_index_leaf_splits_total", "Leaves of an ordered index that were split.", indexLabels...)
	indexMerges    = counter("drtmx_index_leaf_merges_total", "Sparse leaves that were merged with a neighbour.", indexLabels...)
	indexUnlinks   = counter("drtmx_index_leaf_removals_total", "Empty leaves that were removed.", indexLabels...)
	indexMoves     = counter("drtmx_index_row_moves_total", "Rows of an ordered index that moved to a block of another size.", indexLabels...)
	indexFallbacks = counter("drtmx_index_fallback_reads_total", "One-sided reads that clients abandoned and sent to the server.", indexLabels...)

	modelSubModels   = gauge("drtmx_model_submodels", "Sub-models published.", indexLabels...)
	modelBytes       = gauge("drtmx_model_bytes", "Bytes of published sub-models and their router.", indexLabels...)
	modelTTBytes     = gauge("drtmx_model_translation_table_bytes", "Bytes of published translation tables.", indexLabels...)
	modelKeys        = gauge("drtmx_model_trained_keys", "Keys on which the published models were trained.", indexLabels...)
	modelMeanError   = gauge("drtmx_model_error_mean_leaves", "Mean error of the published models over their trained keys.", indexLabels...)
	modelMaxError    = gauge("drtmx_model_error_max_leaves", "Greatest error since the models were last partitioned.", indexLabels...)
	modelErrorKeys   = gauge("drtmx_model_error_keys", "Trained keys whose error is above that of the label before and at most this many leaves.", append(indexLabels[:len(indexLabels):len(indexLabels)], "leaves")...)
	modelRetrains    = counter("drtmx_model_retrains_total", "Sub-models retrained because their leaves changed.", indexLabels...)
	modelGenerations = counter("drtmx_model_generations_total", "Published partitions of the keys into sub-models.", indexLabels...)
	modelQueue       = gauge("drtmx_model_retrain_queue", "Sub-models that wait for retraining.", indexLabels...)
	modelFailures    = counter("drtmx_model_training_failures_total", "Trainings that failed for lack of memory; the old models stay in use.", indexLabels...)
)

func collectIndex(ch chan<- prometheus.Metric, server string, ix *stats.Index) {
	labels := []string{server, strconv.Itoa(ix.Partition), ix.Table, ix.Name}
	send(ch, indexRows, ix.Rows, labels...)
	send(ch, indexTombs, ix.Tombstones, labels...)
	send(ch, indexRowBytes, ix.RowBytes, labels...)
	send(ch, indexBytes, ix.IndexBytes, labels...)
	if !ix.Ordered {
		return
	}
	send(ch, indexFallbacks, ix.GaveUp, labels...)
	send(ch, indexInner, ix.InnerBytes, labels...)
	send(ch, indexLeaves, ix.Leaves, labels...)
	send(ch, indexSplits, ix.Splits, labels...)
	send(ch, indexMerges, ix.Merges, labels...)
	send(ch, indexUnlinks, ix.Unlinks, labels...)
	send(ch, indexMoves, ix.Moves, labels...)
	send(ch, modelSubModels, ix.SubModels, labels...)
	send(ch, modelBytes, ix.ModelBytes, labels...)
	send(ch, modelTTBytes, ix.TTBytes, labels...)
	send(ch, modelKeys, ix.TrainedKeys, labels...)
	send(ch, modelMeanError, ix.MeanError, labels...)
	send(ch, modelMaxError, ix.MaxError, labels...)
	wrong := uint64(0)
	for i, n := range ix.ErrorKeys {
		wrong += n
		send(ch, modelErrorKeys, n, append(labels[:len(labels):len(labels)], errorClass(i))...)
	}
	send(ch, modelErrorKeys, ix.TrainedKeys-min(wrong, ix.TrainedKeys), append(labels[:len(labels):len(labels)], "0")...)
	send(ch, modelRetrains, ix.Retrains, labels...)
	send(ch, modelGenerations, ix.Generations, labels...)
	send(ch, modelQueue, ix.Pending, labels...)
	send(ch, modelFailures, ix.TrainFailures, labels...)
}

// errorClass names a class of index.ServerStats.ErrorKeys by its upper end.
func errorClass(i int) string {
	if i == index.ErrorClasses-1 {
		return "more"
	}
	return strconv.Itoa(1 << i)
}
