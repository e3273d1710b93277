# 1. The jobs of the last 30 days, one line each. Run it as someone who may see everybody's jobs.
#    Unix times, so that no change of clocks shortens a job; the fields are all that replay reads; no names of people.
SLURM_TIME_FORMAT=%s sacct --allusers --allocations --duplicates --parsable2 \
    --starttime=now-30days --endtime=now \
    --format=JobID,JobIDRaw,State,Submit,Start,End,ElapsedRaw,AllocNodes,TimelimitRaw,Partition,NodeList \
    | gzip > jobs.sacct.gz

# 2. When nodes were down or drained, so that they are not taken for idle.
SLURM_TIME_FORMAT=%s sacctmgr --parsable2 show event start=now-30days \
    format=NodeName,TimeStart,TimeEnd,State,Reason | gzip > nodes.events.gz

# 3. The nodes that there are: a job log names only those that ran a job.
sinfo --Node --noheader --format='%N' > nodes.sinfo

# 4. How Slurm is set, for the delay of main jobs and the pilots' margins.
scontrol show config > slurm.txt; sdiag >> slurm.txt

# 5. What would those idle nodes have trained, with the daemon as shipped?
malletrain replay jobs.sacct.gz --outages nodes.events.gz --machine nodes.sinfo --scheduler slurm.txt \
    --report replay-report
